package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Chain is what Verify has found, and what the next file goes on with.
type Chain struct {
	Lines uint64
	First string // what the first line says about the one before it; zeros: there was none
	Head  string // the hash of the last line
	seq   uint64
}

// Beginning is what the first line of a chain has for the hash of the line before.
var Beginning = strings.Repeat("0", 64)

// Verify checks that nothing in a log was changed, left out or put in, and that it
// goes on where before ended; nil: with whatever it says itself. What was cut off at
// the end, nobody can tell but by a head that was kept elsewhere.
func Verify(r io.Reader, before *Chain) (*Chain, error) {
	c := &Chain{}
	if before != nil {
		c.Head, c.seq = before.Head, before.seq
	}
	lines := bufio.NewReaderSize(r, maxLineBytes)
	torn := false // the line before was no event
	for {
		text, err := lines.ReadSlice('\n')
		if err == io.EOF && len(text) == 0 {
			break
		}
		c.Lines++
		if err == io.EOF {
			return c, fmt.Errorf("line %d has no end", c.Lines)
		}
		if err != nil {
			return c, fmt.Errorf("line %d: %w", c.Lines, err)
		}
		text = text[:len(text)-1]
		var one line
		parse := json.Unmarshal(text, &one)
		switch {
		case parse != nil && torn, parse != nil && c.Lines == 1:
			return c, fmt.Errorf("line %d is no event: %w", c.Lines, parse)
		case parse != nil: // the next line has to say that it was not written to its end
			torn = true
			c.Head = hash(text)
			continue
		case torn != one.Torn:
			return c, fmt.Errorf("line %d is no event", c.Lines-1)
		case c.Lines == 1 && before == nil:
			c.First = one.Prev
		case one.Prev != c.Head:
			return c, fmt.Errorf("line %d does not follow the line before it: that was changed, or lines are missing", c.Lines)
		case !torn && one.Seq != c.seq+1:
			return c, fmt.Errorf("line %d has the number %d and should have %d", c.Lines, one.Seq, c.seq+1)
		}
		if c.Lines == 1 {
			c.First = one.Prev
		}
		torn, c.Head, c.seq = false, hash(text), one.Seq
	}
	switch {
	case c.Lines == 0:
		return c, errors.New("it is empty")
	case torn:
		return c, fmt.Errorf("line %d is no event", c.Lines)
	}
	return c, nil
}
