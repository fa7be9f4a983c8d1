package recording

import (
	"bytes"
	"iter"
	"strconv"
	"time"
	"unicode/utf8"

	"execserver/protocol"
)

// encoder writes the events of one process as lines. It knows no file.
type encoder struct {
	pipes bool
	began time.Time
	last  time.Duration     // of the event before, since began
	split map[string][]byte // by stream: the beginning of a character whose rest has not come
	lines []byte            // that are not in the file yet
}

// event appends an event. Times never run backwards.
func (e *encoder) event(at time.Time, code byte, data string) {
	e.last = max(e.last, at.Sub(e.began))
	e.lines = appendEvent(e.lines, e.last, code, data)
}

// output appends what a stream has written. The first bytes of a character wait for the
// others.
func (e *encoder) output(at time.Time, stream string, data []byte) {
	data = append(e.split[stream], data...)
	whole := len(data) - unfinished(data)
	e.split[stream] = bytes.Clone(data[whole:])
	e.text(at, data[:whole])
}

func (e *encoder) text(at time.Time, data []byte) {
	for piece := range pieces(data) {
		if e.pipes {
			piece = bytes.ReplaceAll(piece, []byte("\n"), []byte("\r\n"))
		}
		e.event(at, codeOutput, string(piece))
	}
}

// maxPiece is how much of what was written or read an event has at most. In JSON it becomes
// six times as long at most, so a player needs little memory for a line.
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
	for _, data := range e.split {
		e.text(at, data)
	}
}

// exit appends how the process has ended. The server may not know that.
func (e *encoder) exit(at time.Time, exit protocol.ExitRecord) {
	e.end(at)
	e.event(at, codeMarker, ending(exit))
}

// ending says how a process has ended.
func ending(exit protocol.ExitRecord) string {
	how := "exit status " + strconv.Itoa(exit.ExitCode)
	switch {
	case exit.Signal != "":
		how = "killed by " + exit.Signal
	case exit.ExitCode < 0:
		how = "ended; the system did not report how"
	}
	if exit.EndedBy != "" && exit.EndedBy != protocol.EndedBySelf {
		how += " (" + string(exit.EndedBy) + ")"
	}
	return how
}
