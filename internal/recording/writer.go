package recording

import (
	"bytes"
	"fmt"
	"iter"
	"time"
	"unicode/utf8"

	"execserver/protocol"
)

// encoder writes the events of one process as lines. It knows no file.
type encoder struct {
	pipes  bool
	began  time.Time
	last   time.Duration     // of the event before, since began, in whole microseconds
	stream string            // of the output before
	split  map[string][]byte // by stream: the beginning of a character whose rest has not come
	lines  []byte            // that are not in the file yet
}

// event appends an event. Times never run backwards.
func (e *encoder) event(at time.Time, code byte, data string) {
	now := max(e.last, at.Sub(e.began).Truncate(time.Microsecond))
	e.lines = appendEvent(e.lines, now-e.last, code, data)
	e.last = now
}

// output appends what a stream has written. The first bytes of a character wait for the
// others.
func (e *encoder) output(at time.Time, stream string, data []byte) {
	data = append(e.split[stream], data...)
	whole := len(data) - unfinished(data)
	e.split[stream] = bytes.Clone(data[whole:])
	e.text(at, stream, data[:whole])
}

func (e *encoder) text(at time.Time, stream string, data []byte) {
	if len(data) == 0 {
		return
	}
	if e.pipes {
		if stream != e.stream {
			e.event(at, codeStream, stream)
			e.stream = stream
		}
	}
	for piece := range pieces(data) {
		if e.pipes {
			piece = bytes.ReplaceAll(piece, []byte("\n"), []byte("\r\n"))
		}
		e.event(at, codeOutput, string(piece))
	}
}

// maxPiece is how much of what was written or read an event has at most. In JSON it becomes
// six times as long at most, and so fits into a line that a Reader accepts.
const maxPiece = 64 << 10

// pieces yields data in pieces for events, without cutting characters.
func pieces(data []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(data) > 0 {
			n := min(len(data), maxPiece)
			if n < len(data) {
				n -= unfinished(data[:n])
			}
			if !yield(data[:n]) {
				return
			}
			data = data[n:]
		}
	}
}

// unfinished returns how many bytes at the end of data are the beginning of a character.
func unfinished(data []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		if tail := data[len(data)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// end appends the characters that stayed unfinished.
func (e *encoder) end(at time.Time) {
	for stream, data := range e.split {
		e.text(at, stream, data)
	}
}

// exit appends how the process has ended. The server may not know that.
func (e *encoder) exit(at time.Time, exit protocol.ExitRecord) {
	e.end(at)
	if how := ending(exit); how != "" {
		e.event(at, codeMarker, how)
	}
	if exit.ExitCode >= 0 {
		e.event(at, codeExit, fmt.Sprint(exit.ExitCode))
	}
}

// ending says in words what an exit code does not say.
func ending(exit protocol.ExitRecord) string {
	how := ""
	switch {
	case exit.Signal != "":
		how = "killed by " + exit.Signal
	case exit.ExitCode < 0:
		how = "ended; the system did not report how"
	}
	if exit.EndedBy != "" && exit.EndedBy != protocol.EndedBySelf {
		if how == "" {
			how = "ended"
		}
		how += " (" + string(exit.EndedBy) + ")"
	}
	return how
}
