// Package recording records processes in files. A file is an asciicast of version 2, which
// the programs of asciinema play.
//
// [Open] makes a [Recorder], which writes the files in a directory.
//
// The recording of pipes has a carriage return before each line feed, as a terminal would
// have written it. The package adds nothing to the format but one member of the header, and
// tells in markers what the format has no event for: gaps, and how the process ended.
package recording

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"
)

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

// maxSide bounds the rows and the columns of a terminal.
const maxSide = 1000

// source says what was recorded.
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
