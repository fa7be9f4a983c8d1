package process

import (
	"fmt"
	"syscall"

	"execserver/protocol"
)

// What Linux accepts at most. Nothing else is done with what is larger.
const (
	maxString  = 128<<10 - 1 // bytes of an argument, or of a variable with its name
	maxStrings = 6 << 20     // bytes of all of them, each with its end and a pointer to it
	stringCost = 1 + 8
	maxProgram = 4<<10 - 1 // bytes of the path of a program
)

// maxPathEntries bounds the directories that are searched for a program.
const maxPathEntries = 4096

// CheckSize refuses arguments and variables that are larger than any system accepts. The
// error is an *Error that names the limit.
func CheckSize(argv []string, arg0 *string, env ...map[string]string) error {
	program := ""
	if len(argv) > 0 {
		program = argv[0]
	}
	refuse := func(err syscall.Errno, format string, args ...any) error {
		return &Error{Program: program, Reason: fmt.Sprintf(format, args...), Err: err}
	}
	if len(program) > maxProgram {
		return refuse(syscall.ENAMETOOLONG, "the name of the program is %d bytes long, the limit is %d", len(program), maxProgram)
	}
	if arg0 != nil {
		argv = append([]string{*arg0}, argv[min(1, len(argv)):]...)
	}
	total := 0
	for i, arg := range argv {
		if len(arg) > maxString {
			return refuse(syscall.E2BIG, "argument %d is %d bytes long, the limit is %d", i, len(arg), maxString)
		}
		total += len(arg) + stringCost
	}
	for _, variables := range env {
		for name, value := range variables {
			if n := len(name) + len("=") + len(value); n > maxString {
				return refuse(syscall.E2BIG, "the variable %q is %d bytes long with its name, the limit is %d", protocol.Shorten(name), n, maxString)
			}
			total += len(name) + len("=") + len(value) + stringCost
		}
	}
	if total > maxStrings {
		return refuse(syscall.E2BIG, "arguments and environment take %d bytes, the limit is %d", total, maxStrings)
	}
	return nil
}
