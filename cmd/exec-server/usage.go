package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageError says that the command line is invalid.
type usageError struct {
	err     error
	command *cobra.Command
}

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

// text returns the error and where to find help. The list of all flags would bury the
// error.
func (e *usageError) text() string {
	help := "Usage: " + e.command.UseLine()
	if unknown, ok := errors.AsType[*unknownCommandError](e.err); ok {
		help = "Commands: " + strings.Join(unknown.commands, ", ")
	}
	return fmt.Sprintf("error: %s\n\n%s\n\nFor more information, try '%s --help'.\n",
		e.err, help, e.command.CommandPath())
}

// unknownCommandError says that a word is no subcommand.
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

// subcommandOnly refuses words that are no subcommand.
func subcommandOnly(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return unknownCommand(command, args[0])
}

// unknownCommand says that command has no subcommand of this name.
func unknownCommand(command *cobra.Command, word string) error {
	// Of two letters, one may be wrong; of many, two.
	command.SuggestionsMinimumDistance = min(max(1, len(word)/2), 2)
	var names []string
	for _, sub := range command.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return &usageError{&unknownCommandError{word, command.SuggestionsFor(word), names}, command}
}

// noArgs refuses arguments.
func noArgs(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{fmt.Errorf("unexpected argument %q", args[0]), command}
	}
	return nil
}

// needArgs returns a check that there are arguments. missing is the error without them.
func needArgs(missing string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if len(args) == 0 {
			return &usageError{errors.New(missing), command}
		}
		return nil
	}
}

// oneTarget checks that there is one process.
func oneTarget(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return &usageError{errors.New("name the process; exec-server ps lists them"), command}
	}
	return noArgs(command, args[1:])
}

// needPaths refuses paths that are empty: an unset variable in a script must not mean the
// directory of the server.
func needPaths(command *cobra.Command, args []string) error {
	if slices.Contains(args, "") {
		return &usageError{errors.New("a path is empty; name it, or leave it out"), command}
	}
	return nil
}

// flagError converts an error of the flag library to a usageError.
func flagError(command *cobra.Command, err error) error {
	// Flags after a word that is no command would be flags of the unknown command.
	if words := command.Flags().Args(); command.HasSubCommands() && len(words) > 0 && command.ValidateArgs(words) != nil {
		return unknownCommand(command, words[0])
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		err = invalidValue(invalid.GetFlag().Name, invalid.GetValue(), expected(invalid))
	}
	return &usageError{err, command}
}

// invalidValueError says that the value of a flag is invalid.
type invalidValueError struct{ flag, value, problem string }

func (e *invalidValueError) Error() string {
	return fmt.Sprintf("invalid value %q for --%s: %s", e.value, e.flag, e.problem)
}

func invalidValue(flag, value, problem string) error {
	return &invalidValueError{flag, value, problem}
}

// expected says what is wrong with a value of the wrong type.
func expected(err *pflag.InvalidValueError) string {
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
