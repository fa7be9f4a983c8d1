package process

import (
	"bytes"

	"execserver/internal/output"
)

// deniedBytes is how much of the retained output is searched for a denial.
const deniedBytes = 1 << 20

// deniedWords are what programs say when a sandbox keeps them from something.
var deniedWords = [][]byte{
	[]byte("operation not permitted"),
	[]byte("permission denied"),
	[]byte("read-only file system"),
	[]byte("seccomp"),
	[]byte("sandbox"),
	[]byte("landlock"),
	[]byte("failed to write file"),
}

// codeBadCall is the exit code of a program that a filter of system calls has
// killed, by SIGSYS.
const codeBadCall = 128 + 31

// denied guesses whether a sandbox is why a program has failed: released clients
// then ask whether it may run without one.
func denied(l *output.Log, code int) bool {
	if code == 0 {
		return false
	}
	text := bytes.ToLower(l.Latest(deniedBytes))
	for _, words := range deniedWords {
		if bytes.Contains(text, words) {
			return true
		}
	}
	return code == codeBadCall
}
