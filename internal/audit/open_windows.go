package audit

import "os"

// openFile opens a log. Who else can read it is for its directory to say here.
func openFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
}

// isDeleted reports nothing: what is open keeps its name here.
func isDeleted(*os.File) bool { return false }
