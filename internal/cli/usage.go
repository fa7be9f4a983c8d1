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

// UsageError says that the command line is invalid.
type UsageError struct {
	err     error
	command *cobra.Command
}

// NewUsageError returns an error about the command line of command.
func NewUsageError(err error, command *cobra.Command) error { return &UsageError{err, command} }

func (e *UsageError) Error() string { return e.err.Error() }

func (e *UsageError) Unwrap() error { return e.err }

// Text returns the error and where to find help. The list of all flags would bury the
// error.
func (e *UsageError) Text() string {
	help := "Usage: " + e.command.UseLine()
	if unknown, ok := errors.AsType[*unknownCommandError](e.err); ok {
		help = "Commands: " + strings.Join(unknown.commands, ", ")
	}
	return fmt.Sprintf("error: %s\n\n%s\n\nFor more information, try '%s --help'.\n",
		e.err, help, e.command.CommandPath())
}

// unknownCommandError is the error for a subcommand that does not exist.
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

// SubcommandOnly refuses words that are no subcommand.
func SubcommandOnly(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return UnknownCommand(command, args[0])
}

// UnknownCommand says that command has no subcommand of this name.
func UnknownCommand(command *cobra.Command, word string) error {
	// Of two letters, one may be wrong; of many, two.
	command.SuggestionsMinimumDistance = min(max(1, len(word)/2), 2)
	var names []string
	for _, sub := range command.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	near := command.SuggestionsFor(word) // the same one twice, if it is near in two ways
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

// NeedArgs returns a check that there are arguments. missing is the error without them.
func NeedArgs(missing string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if len(args) == 0 {
			return NewUsageError(errors.New(missing), command)
		}
		return nil
	}
}

// OneTarget checks that there is one process.
func OneTarget(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return NewUsageError(errors.New("name the process; exec-server ps lists them"), command)
	}
	return NoArgs(command, args[1:])
}

// NeedPaths refuses paths that are empty: an unset variable in a script must not mean the
// directory of the server.
func NeedPaths(command *cobra.Command, args []string) error {
	if slices.Contains(args, "") {
		return NewUsageError(errors.New("a path is empty; name it, or leave it out"), command)
	}
	return nil
}

// FlagError converts an error of the flag library to a usageError.
func FlagError(command *cobra.Command, err error) error {
	// Flags after a word that is no command would be flags of the unknown command.
	if words := command.Flags().Args(); command.HasSubCommands() && len(words) > 0 && command.ValidateArgs(words) != nil {
		return UnknownCommand(command, words[0])
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		err = InvalidValue(invalid.GetFlag().Name, invalid.GetValue(), Expected(invalid))
	}
	return NewUsageError(err, command)
}

// InvalidValueError says that the value of a flag is invalid.
type InvalidValueError struct{ Flag, Value, Problem string }

func (e *InvalidValueError) Error() string {
	return fmt.Sprintf("invalid value %q for --%s: %s", e.Value, e.Flag, e.Problem)
}

func InvalidValue(flag, value, problem string) error {
	return &InvalidValueError{flag, value, problem}
}

// Expected says what is wrong with a value of the wrong type.
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

// CompleteNames completes the name of a machine.
func CompleteNames(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	names, _, _ := environments.Names() // without a valid configuration there is nothing to offer
	return names, cobra.ShellCompDirectiveNoFileComp
}
