// Package recording records processes in files, and reads such files. A file is an
// asciicast of version 3, which the programs of asciinema play.
//
// [Open] makes a [Recorder], which writes the files in a directory. [NewReader] reads one.
//
// A terminal is recorded as asciinema does it. The recording of pipes differs in two
// things: it has a carriage return before each line feed, as players expect, which
// [Reader] takes out again; and an event "s" with the name of a stream says to which
// stream the output after it belongs. Players ignore that event.
package recording

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
)

// Header is the first line of a recording.
type Header struct {
	Version   int    `json:"version"`
	Term      Term   `json:"term"`
	Timestamp int64  `json:"timestamp,omitempty"` // of the start, Unix seconds
	Command   string `json:"command,omitempty"`
	Title     string `json:"title,omitempty"`

	// ExecServer is nil in the recording of another program.
	ExecServer *Source `json:"execServer,omitempty"`
}

// Term is the terminal, or the one on which a recording of pipes is shown.
type Term struct {
	Cols int    `json:"cols"`
	Rows int    `json:"rows"`
	Type string `json:"type,omitempty"`
}

// Source says what was recorded.
type Source struct {
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

// The codes of events. A reader ignores others.
const (
	codeOutput = 'o'
	codeInput  = 'i'
	codeResize = 'r'
	codeMarker = 'm'
	codeExit   = 'x'
	codeStream = 's' // our own: the stream of the output that follows
)

// stdout is the stream to which the output of pipes belongs at first.
const stdout = "stdout"

// appendEvent appends an event as a line. Characters that are not UTF-8 become U+FFFD.
func appendEvent(b []byte, after time.Duration, code byte, data string) []byte {
	b = append(b, '[')
	b = strconv.AppendFloat(b, after.Seconds(), 'f', 6, 64)
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
