package audit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// Chain is the result of Verify, from which the next file continues.
type Chain struct {
	Lines uint64
	First string // the hash of the previous line in the first event; zeros if there was none
	Head  string // the hash of the last event
	seq   uint64
}

// Verify checks that nobody changed, removed or inserted an event, and that the log
// continues the chain before. If before is nil, it accepts any start. It cannot notice
// events removed from the end, unless the caller compares the head with one kept
// elsewhere.
func Verify(r io.Reader, before *Chain) (*Chain, error) {
	c := &Chain{}
	if before != nil {
		c.Head, c.seq = before.Head, before.seq
	}
	lines := bufio.NewReaderSize(r, maxLineBytes)
	var rest []byte // bytes before an event that are not an event
	for {
		text, err := lines.ReadSlice('\n')
		if err == io.EOF && len(text) == 0 {
			break
		}
		c.Lines++
		if err == io.EOF {
			return c, fmt.Errorf("line %d is incomplete: the server is writing it, or crashed while writing it; after a crash, the first event of the next start has its hash", c.Lines)
		}
		if err != nil {
			return c, fmt.Errorf("line %d: %w", c.Lines, err)
		}
		one, ok := parse(text[:len(text)-1])
		if !ok { // the next event must have its hash
			if rest = append(rest, text...); len(rest) > maxLineBytes {
				return c, fmt.Errorf("line %d is not an event", c.Lines)
			}
			continue
		}
		told, first := hashOfRest(rest), c.First == ""
		switch {
		case one.Torn != told && told != "":
			return c, fmt.Errorf("line %d is not an event, and the next event does not have its hash", c.Lines-1)
		case one.Torn != told:
			return c, fmt.Errorf("line %d has the hash of earlier bytes that are missing", c.Lines)
		case first && before == nil && one.Prev == Beginning && one.Seq != 1:
			return c, fmt.Errorf("line %d is the first of the log, and has the number %d instead of 1", c.Lines, one.Seq)
		case first && before == nil:
		case one.Prev != c.Head:
			return c, fmt.Errorf("line %d does not follow the line before it: somebody changed that line or removed lines", c.Lines)
		case one.Seq != c.seq+1:
			return c, fmt.Errorf("line %d has the number %d and should have %d", c.Lines, one.Seq, c.seq+1)
		}
		if first {
			c.First = one.Prev
		}
		rest, c.Head, c.seq = nil, hash(text[:len(text)-1]), one.Seq
	}
	switch {
	case c.Lines == 0:
		return c, errors.New("the file is empty")
	case len(rest) > 0:
		return c, fmt.Errorf("line %d is not an event", c.Lines)
	}
	return c, nil
}
