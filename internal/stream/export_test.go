package stream

// ResumedAfter is how many bytes the end that accepts sends to resume a stream.
const ResumedAfter = replySize + 1 + answerSize + 32

// Held returns how much memory a stream holds.
func Held(c *Conn) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return (len(c.in.chunks) + len(c.out.chunks)) * chunkSize
}

// Secrets returns what resumes a stream.
func Secrets(c *Conn) (id, secret []byte, generation uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id[:], c.secret, c.generation
}

// ErrUnread is the error of a stream that was closed without a link.
var ErrUnread = errUnread
