package process

import "bytes"

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
func (l *Log) denied(code int) bool {
	if code == 0 {
		return false
	}
	output := bytes.ToLower(l.tail(deniedBytes))
	for _, words := range deniedWords {
		if bytes.Contains(output, words) {
			return true
		}
	}
	return code == codeBadCall
}

// tail is the end of the retained output of all streams.
func (l *Log) tail(limit int) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, size := len(l.chunks), 0
	for first > 0 && size < limit {
		first--
		size += len(l.chunks[first].Data)
	}
	b := make([]byte, 0, size)
	for _, c := range l.chunks[first:] {
		b = append(b, c.Data...)
	}
	return b[max(0, len(b)-limit):]
}
