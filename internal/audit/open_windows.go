package audit

import "os"

// openFile opens a log for appending. On Windows its directory controls access to it.
func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
}
