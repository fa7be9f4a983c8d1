package audit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// Chain is what Verify has found, and what the next file goes on with.
type Chain struct {
	Lines uint64
	First string // what the first event says about the line before it; zeros: there was none
	Head  string // the hash of the last event
	seq   uint64
}

// Verify checks that nothing in a log was changed, left out or put in, and that it
// goes on where before ended; nil: with whatever it says itself. What was cut off at
// the end, nobody can tell but by a head that was kept elsewhere.
func Verify(r io.Reader, before *Chain) (*Chain, error) {
	c := &Chain{}
	if before != nil {
		c.Head, c.seq = before.Head, before.seq
	}
	lines := bufio.NewReaderSize(r, maxLineBytes)
	var rest []byte // what comes before an event and is none
	for {
		text, err := lines.ReadSlice('\n')
		if err == io.EOF && len(text) == 0 {
			break
		}
		c.Lines++
		if err == io.EOF {
			return c, fmt.Errorf("line %d has no end: it is being written, or was when the server crashed; the next start will tell of it", c.Lines)
		}
		if err != nil {
			return c, fmt.Errorf("line %d: %w", c.Lines, err)
		}
		one, ok := parse(text[:len(text)-1])
		if !ok { // the next event has to tell of it
			if rest = append(rest, text...); len(rest) > maxLineBytes {
				return c, fmt.Errorf("line %d is no event", c.Lines)
			}
			continue
		}
		told, first := hashOfRest(rest), c.First == ""
		switch {
		case one.Torn != told && told != "":
			return c, fmt.Errorf("line %d is no event, and the next event does not tell of it", c.Lines-1)
		case one.Torn != told:
			return c, fmt.Errorf("line %d tells of something before it that is not there", c.Lines)
		case first && before == nil && one.Prev == Beginning && one.Seq != 1:
			return c, fmt.Errorf("line %d is the first of all, and has the number %d", c.Lines, one.Seq)
		case first && before == nil:
		case one.Prev != c.Head:
			return c, fmt.Errorf("line %d does not follow the line before it: that was changed, or lines are missing", c.Lines)
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
		return c, errors.New("it is empty")
	case len(rest) > 0:
		return c, fmt.Errorf("line %d is no event", c.Lines)
	}
	return c, nil
}
