package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageError says that the command line cannot be understood.
type usageError struct {
	err     error
	command *cobra.Command
}

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

// text is the error, and where help is. The list of all flags would bury it.
func (e *usageError) text() string {
	return fmt.Sprintf("error: %s\n\nUsage: %s\n\nFor more information, try '%s --help'.\n",
		e.err, e.command.UseLine(), e.command.CommandPath())
}

// flagError makes an error of the flag library one about the command line.
func flagError(command *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		err = invalidValue(invalid.GetFlag().Name, invalid.GetValue(), expected(invalid))
	}
	return &usageError{err, command}
}

func invalidValue(flag, value, problem string) error {
	return fmt.Errorf("invalid value %q for --%s: %s", value, flag, problem)
}

// expected says what is wrong with a value that does not have the flag's type.
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
