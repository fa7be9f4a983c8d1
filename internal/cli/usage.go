package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/client/environments"
)

// UsageError is the error of an invalid command line.
type UsageError struct {
	err     error
	command *cobra.Command
}

// NewUsageError returns an error about the command line of command.
func NewUsageError(err error, command *cobra.Command) error { return &UsageError{err, command} }

func (e *UsageError) Error() string { return e.err.Error() }

func (e *UsageError) Unwrap() error { return e.err }

// Text returns the error with a pointer to the help. A list of all flags would bury the error.
func (e *UsageError) Text() string {
	help := "Usage: " + e.command.UseLine()
	if unknown, ok := errors.AsType[*unknownCommandError](e.err); ok {
		help = "Commands: " + strings.Join(unknown.commands, ", ")
	}
	return fmt.Sprintf("error: %s\n\n%s\n\nFor more information, try '%s --help'.\n",
		e.err, help, e.command.CommandPath())
}

// AddHelpFlags adds the flag --help to every subcommand that has none, after its own flags, which
// help lists in the order in which they were defined.
func AddHelpFlags(command *cobra.Command) {
	for _, sub := range command.Commands() {
		sub.Flags().SortFlags = false
		if sub.Flags().Lookup("help") == nil {
			sub.Flags().BoolP("help", "h", false, "print this text")
		}
		AddHelpFlags(sub)
	}
}

// AddListenFlag defines --listen, of which a second one is an error: a program has one listener, and
// the last URL must not silently replace the others.
func AddListenFlag(f *pflag.FlagSet, url *string, value, usage string) {
	*url = value
	f.Var(&listenFlag{url: url}, "listen", usage)
}

type listenFlag struct {
	url   *string
	given bool
}

func (l *listenFlag) String() string {
	if l.url == nil {
		return ""
	}
	return *l.url
}

func (l *listenFlag) Type() string { return "string" }

func (l *listenFlag) Set(url string) error {
	if l.given {
		return errors.New("it is given twice, and a server listens at one URL")
	}
	*l.url, l.given = url, true
	return nil
}

// unknownCommandError is the error for an unknown subcommand.
type unknownCommandError struct {
	word           string
	near, commands []string
}

func (e *unknownCommandError) Error() string {
	text := fmt.Sprintf("unknown command %q", e.word)
	if len(e.near) > 0 {
		text += "; did you mean " + strings.Join(e.near, " or ") + "?"
	}
	return text
}

// SubcommandOnly refuses words that are not subcommands.
func SubcommandOnly(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return UnknownCommand(command, args[0])
}

// UnknownCommand returns the error for a word that is not a subcommand of command.
func UnknownCommand(command *cobra.Command, word string) error {
	// Of two letters, one may be wrong; of many, two.
	command.SuggestionsMinimumDistance = min(max(1, len(word)/2), 2)
	var names []string
	for _, sub := range command.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	near := command.SuggestionsFor(word) // may have duplicates
	slices.Sort(near)
	return NewUsageError(&unknownCommandError{word, slices.Compact(near), names}, command)
}

// NoArgs refuses arguments.
func NoArgs(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return NewUsageError(fmt.Errorf("unexpected argument %q", args[0]), command)
	}
	return nil
}

// NeedArgs returns a check for at least one argument. missing is the error without one.
func NeedArgs(missing string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if len(args) == 0 {
			return NewUsageError(errors.New(missing), command)
		}
		return nil
	}
}

// OneTarget accepts exactly one process.
func OneTarget(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return NewUsageError(errors.New("name the process; exec-server ps lists them"), command)
	}
	return NoArgs(command, args[1:])
}

// NeedPaths refuses empty paths: an unset variable in a script must not mean the directory of the
// server.
func NeedPaths(command *cobra.Command, args []string) error {
	if slices.Contains(args, "") {
		return NewUsageError(errors.New("a path is empty; name it, or leave it out"), command)
	}
	return nil
}

// FlagError converts an error of the flag library to a UsageError.
func FlagError(command *cobra.Command, err error) error {
	// The flags after an unknown command belong to that command.
	if words := command.Flags().Args(); command.HasSubCommands() && len(words) > 0 && command.ValidateArgs(words) != nil {
		return UnknownCommand(command, words[0])
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		err = InvalidValue(invalid.GetFlag().Name, invalid.GetValue(), Expected(invalid))
	}
	return NewUsageError(err, command)
}

// InvalidValueError is the error for the invalid value of a flag.
type InvalidValueError struct{ Flag, Value, Problem string }

func (e *InvalidValueError) Error() string {
	return fmt.Sprintf("invalid value %q for --%s: %s", e.Value, e.Flag, e.Problem)
}

func InvalidValue(flag, value, problem string) error {
	return &InvalidValueError{flag, value, problem}
}

// Expected describes the values that a flag accepts.
func Expected(err *pflag.InvalidValueError) string {
	switch kind := err.GetFlag().Value.Type(); {
	case kind == "bool":
		return "expected true or false"
	case kind == "duration":
		return "expected a number with a unit, such as 90s or 10m"
	case errors.Is(err, strconv.ErrRange):
		return "out of range"
	case kind == "uint64":
		return "expected a whole number, not negative"
	case kind == "int", kind == "int64":
		return "expected a whole number"
	}
	return err.Unwrap().Error()
}

// Groups of subcommands, in the order of the help text.
const (
	GroupServe = "serve"
	GroupWork  = "work"
	GroupLook  = "look"
	GroupSetUp = "setup"
)

// DescribePlainly removes the marks of help texts from the descriptions of flags if args ask for
// completions, which show the descriptions as they are.
func DescribePlainly(command *cobra.Command, args []string) {
	if len(args) == 0 || args[0] != cobra.ShellCompRequestCmd {
		return
	}
	command.Flags().VisitAll(func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) })
	for _, sub := range command.Commands() {
		DescribePlainly(sub, args)
	}
}

// CompleteMachines completes the name of a machine for --on.
func CompleteMachines(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	names, _, _ := environments.Names()
	if !slices.Contains(names, ThisMachine) { // --on local works without include_local, too
		names = append(names, ThisMachine)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
