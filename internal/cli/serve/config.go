package serve

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/internal/auth"
	"execserver/internal/cli"
	"execserver/internal/sys"
)

// configName is the flag that names the configuration file. It is not a setting.
const configName = "config"

// isSetting reports whether a flag is also a setting of the configuration file.
func isSetting(f *pflag.Flag) bool { return f.Name != configName && f.Name != runDirectoryName }

// setting is a flag that a configuration file sets.
type setting struct {
	name   string
	line   int      // in the file; 0 if unknown
	values []string // as on the command line; several for a flag that may be repeated
}

// apply sets the flag.
func (s setting) apply(f *pflag.FlagSet) error {
	for _, value := range s.values {
		err := f.Set(s.name, value)
		if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
			err = cli.InvalidValue(s.name, value, cli.Expected(invalid))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// check returns the error of the value alone.
func (s setting) check(listens bool) error {
	f, alone := newFlags(listens)
	err := s.apply(f)
	if err == nil {
		err = alone.complete(f)
	}
	if invalid, ok := errors.AsType[*cli.InvalidValueError](err); ok && invalid.Flag == s.name {
		return fmt.Errorf("invalid value %q for %s: %s", invalid.Value, s.name, invalid.Problem)
	}
	return nil // other errors are about other flags
}

// newFlags returns the flags of a server, with or without those about listening.
func newFlags(listens bool) (*pflag.FlagSet, *Flags) {
	var o Flags
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	o.Define(f, listens)
	return f, &o
}

// configure applies the settings of --config that the command line does not override.
func (o *Flags) configure(f *pflag.FlagSet) error {
	if o.config == "" {
		return nil
	}
	path, err := auth.AbsolutePath(o.config)
	if err != nil {
		return fmt.Errorf("find the configuration %s: %w", o.config, err)
	}
	o.config = path
	settings, faults := readConfig(path, o.listens)
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	settings = slices.DeleteFunc(settings, func(s setting) bool { return f.Changed(s.name) })
	for _, s := range settings {
		if err := s.apply(f); err != nil {
			return err
		}
	}
	return nil
}

// CheckConfig returns the faults of a configuration file that would prevent a start.
func CheckConfig(path string) (faults []error) {
	settings, faults := readConfig(path, true)
	if len(faults) > 0 {
		return faults
	}
	f, o := newFlags(true)
	var err error
	for _, s := range settings {
		err = cmp.Or(err, s.apply(f))
	}
	if err == nil {
		err = o.complete(f)
	}
	var addr Address
	if err == nil {
		addr, err = ParseListen(o.Listen, o.TLSCert != "")
	}
	switch {
	case err != nil:
	case addr.Kind == listenInherited: // the sockets decide
		err = o.checkAuth()
	default:
		_, _, err = o.Prepare(addr)
	}
	if err != nil {
		return []error{fmt.Errorf("%s: %w", path, err)}
	}
	return nil
}

// readConfig reads a configuration file. Each fault has its position.
func readConfig(path string, listens bool) (settings []setting, faults []error) {
	text, err := auth.ReadFile(path, auth.PublicFile)
	if err != nil {
		return nil, []error{fmt.Errorf("read the configuration %s: %w", path, sys.WrapError(err))}
	}
	var values map[string]toml.Primitive
	meta, err := toml.Decode(string(text), &values)
	if parse, ok := errors.AsType[toml.ParseError](err); ok {
		return nil, []error{placed(path, parse.Position.Line, errors.New(parse.Message))}
	} else if err != nil {
		return nil, []error{fmt.Errorf("%s: %w", path, err)}
	}
	flags, _ := newFlags(listens)
	for _, key := range meta.Keys() {
		value, ok := values[key[0]]
		if delete(values, key[0]); !ok { // a part of a value
			continue
		}
		s := setting{name: key[0], line: lineOf(&meta, value)}
		var content any
		err := meta.PrimitiveDecode(value, &content)
		if err == nil {
			s.values, err = flagValues(flags, s.name, content)
		}
		if err == nil {
			err = s.check(listens)
		}
		if err != nil {
			faults = append(faults, placed(path, s.line, err))
			continue
		}
		settings = append(settings, s)
	}
	return settings, faults
}

// placed adds the position of a fault.
func placed(path string, line int, fault error) error {
	if line == 0 {
		return fmt.Errorf("%s: %w", path, fault)
	}
	return fmt.Errorf("%s:%d: %w", path, line, fault)
}

// unreadable cannot be decoded, which makes the library report its position.
type unreadable struct{}

func (unreadable) UnmarshalTOML(any) error { return errors.New("unreadable") }

// lineOf returns the line of a value, or 0 if unknown.
func lineOf(meta *toml.MetaData, value toml.Primitive) int {
	parse, _ := errors.AsType[toml.ParseError](meta.PrimitiveDecode(value, new(unreadable)))
	line := parse.Position.Line
	var parts map[string]toml.Primitive
	if line == 0 && meta.PrimitiveDecode(value, &parts) == nil { // a table without a line of its own
		for _, part := range parts {
			if at := lineOf(meta, part); line == 0 || at < line {
				line = at
			}
		}
	}
	return line
}

// flagValues returns the values for the flag of that name.
func flagValues(flags *pflag.FlagSet, name string, content any) ([]string, error) {
	flag := flags.Lookup(name)
	if flag == nil || !isSetting(flag) {
		return nil, unknownSetting(flags, name)
	}
	switch flag.Value.Type() {
	case "bool":
		if value, ok := content.(bool); ok {
			return []string{strconv.FormatBool(value)}, nil
		}
		return nil, fmt.Errorf("%s: expected true or false, without quotes", name)
	case "int", "int64", "uint64":
		if value, ok := content.(int64); ok {
			return []string{strconv.FormatInt(value, 10)}, nil
		}
		return nil, fmt.Errorf("%s: expected a whole number, without quotes", name)
	case "stringArray":
		return elements(name, content, `strings, such as ["a", "b"]`, text)
	case "uintSlice":
		return elements(name, content, "numbers, such as [1000, 1001]", func(element any) (string, bool) {
			value, ok := element.(int64)
			return strconv.FormatInt(value, 10), ok
		})
	}
	if value, ok := text(content); ok {
		return []string{value}, nil
	}
	example := "a string in quotes, not empty"
	if flag.Value.Type() == "duration" {
		example = `a time in quotes with its unit, such as "90s" or "10m"`
	}
	return nil, fmt.Errorf("%s: expected %s", name, example)
}

// text accepts a string that is not empty. A variable that a template has not replaced must not
// open the server.
func text(content any) (string, bool) {
	value, ok := content.(string)
	return value, ok && value != ""
}

// elements returns the values of an array.
func elements(name string, content any, expected string, convert func(any) (string, bool)) (values []string, err error) {
	array, ok := content.([]any)
	for _, element := range array {
		value, good := convert(element)
		values, ok = append(values, value), ok && good
	}
	if !ok {
		return nil, fmt.Errorf("%s: expected an array of %s", name, expected)
	}
	return values, nil
}

// unknownSetting returns the error for an unknown setting, with similar names.
func unknownSetting(flags *pflag.FlagSet, name string) error {
	names := &cobra.Command{SuggestionsMinimumDistance: min(max(1, len(name)/2), 3)} // for its comparison of words
	flags.VisitAll(func(f *pflag.Flag) {
		if isSetting(f) {
			names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	if near := names.SuggestionsFor(name); len(near) > 0 {
		return fmt.Errorf("unknown setting %q; did you mean %s?", name, strings.Join(near, " or "))
	}
	return fmt.Errorf("unknown setting %q", name)
}

// ConfigCommand returns the command config.
func ConfigCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "config COMMAND", Short: "Check a configuration file", GroupID: cli.GroupServe,
		Args: cobra.MatchAll(cli.NeedArgs("name a command: check"), cli.SubcommandOnly),
		RunE: func(*cobra.Command, []string) error { return nil }, // never called: Args accepts no arguments
	}
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Check whether a server would start with a configuration file",
		Long: "check reads a file for \"exec-server serve --config FILE\", and the files that it names, as the server\n" +
			"would. It prints ok; or it prints a line for each mistake, and exits with 1. It does not\n" +
			"listen. Run it as the user of the server. The settings are the flags of serve, without --.",
		Example: "  runuser -u exec-server -- exec-server config check /etc/exec-server/config.toml && systemctl restart exec-server",
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.NewUsageError(errors.New("name the file to check"), command)
			}
			return cli.NoArgs(command, args[1:])
		},
		RunE: func(command *cobra.Command, args []string) error {
			faults := CheckConfig(args[0])
			for _, fault := range faults {
				fmt.Fprintln(command.ErrOrStderr(), cli.OneLine(fault.Error()))
			}
			if len(faults) > 0 {
				return cli.ExitCode(1)
			}
			_, err := fmt.Fprintln(command.OutOrStdout(), "ok")
			return err
		},
	}
	command.AddCommand(check)
	return command
}
