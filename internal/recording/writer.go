// Package recording records processes in files in the format asciicast v2, which asciinema
// plays.
//
// [Open] makes a [Recorder], which writes the files in a directory.
//
// A recording of pipes has a carriage return before each line feed, as a terminal would have
// written it. The package extends the format only by one member of the header. Markers report
// gaps and the end of the process, for which the format has no events.
package recording

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strconv"
	"time"
	"unicode/utf8"

	"execserver/protocol"
)

// encoder encodes the events of one process as lines.
type encoder struct {
	pipes bool
	began time.Time
	last  time.Duration     // of the event before, since began
	split map[string][]byte // by stream: the beginning of an incomplete character
	lines []byte            // not yet written to the file
}

// event appends an event. Times never run backwards.
func (e *encoder) event(at time.Time, code byte, data string) {
	e.last = max(e.last, at.Sub(e.began))
	e.lines = appendEvent(e.lines, e.last, code, data)
}

// output appends output of a stream. It holds back an incomplete character.
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

// maxPiece is the maximum data of an event. JSON encoding makes it at most six times as long,
// so a player needs little memory for a line.
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

// unfinished returns the length of an incomplete character at the end of data.
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

// end appends the incomplete characters.
func (e *encoder) end(at time.Time) {
	for _, data := range e.split {
		e.text(at, data)
	}
}

// exit appends a marker for the end of the process.
func (e *encoder) exit(at time.Time, exit protocol.ExitRecord) {
	e.end(at)
	e.event(at, codeMarker, ending(exit))
}

// ending describes how a process ended.
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

// version is the version of the format.
const version = 2

// header is the first line of a recording.
type header struct {
	Version   int               `json:"version"`
	Width     int               `json:"width"`
	Height    int               `json:"height"`
	Timestamp int64             `json:"timestamp,omitempty"` // of the start, Unix seconds
	Command   string            `json:"command,omitempty"`
	Env       map[string]string `json:"env,omitempty"` // TERM alone

	// ExecServer is nil in the recording of another program.
	ExecServer *source `json:"execServer,omitempty"`
}

// maxDimension bounds the rows and the columns of a terminal.
const maxDimension = 1000

// source describes the recorded process.
type source struct {
	Principal string   `json:"principal"`
	Session   string   `json:"sessionId"`
	Process   string   `json:"processId"`
	Name      string   `json:"sessionName,omitempty"`
	Argv      []string `json:"argv"`
	Cut       bool     `json:"argvTruncated,omitempty"`
	Dir       string   `json:"cwd"`
	Pipes     bool     `json:"pipes,omitempty"` // instead of a terminal
	Input     bool     `json:"input,omitempty"` // input is recorded, too
}

// readHeader reads the first line of a recording that this package wrote.
func readHeader(r io.Reader) (h header, err error) {
	line, err := bufio.NewReader(r).ReadBytes('\n')
	if err != nil {
		return h, fmt.Errorf("it has no header: %w", err)
	}
	if err := json.Unmarshal(line, &h); err != nil {
		return h, fmt.Errorf("its first line is not a header: %w", err)
	}
	if h.Version != version || h.ExecServer == nil {
		return h, fmt.Errorf("another program has recorded it, in version %d of the format", h.Version)
	}
	return h, nil
}

// The codes of events.
const (
	codeOutput = 'o'
	codeInput  = 'i'
	codeResize = 'r'
	codeMarker = 'm'
)

// appendEvent appends an event as a line. at is the time since the start. Characters that
// are not UTF-8 become U+FFFD.
func appendEvent(b []byte, at time.Duration, code byte, data string) []byte {
	b = append(b, '[')
	b = strconv.AppendFloat(b, at.Seconds(), 'f', 6, 64)
	b = append(b, ',', ' ', '"', code, '"', ',', ' ')
	return append(append(b, encode(data)...), "]\n"...)
}

// encode encodes a value, of which the marks < > & stay as they are.
func encode(value any) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err) // strings and numbers always have a form in JSON
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}
