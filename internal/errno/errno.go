// Package errno gives the errors of the operating system the texts that clients
// of the wire know: the wording of the C library that the released server is
// linked with, and the number.
package errno

import (
	"errors"
	"fmt"
	"syscall"
)

// Text returns "No such file or directory (os error 2)" for the errno inside
// err, and err's own text when there is none.
func Text(err error) string {
	var e syscall.Errno
	if !errors.As(err, &e) {
		return err.Error()
	}
	text, ok := texts[e]
	if !ok {
		text = e.Error()
	}
	return fmt.Sprintf("%s (os error %d)", text, int(e))
}
