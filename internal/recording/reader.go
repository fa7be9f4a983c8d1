package recording

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// EventKind is the kind of an Event.
type EventKind byte

// The kinds of event.
const (
	Output EventKind = iota + 1
	Input
	Resize
	Marker
	Exit
)

// Event is one event of a recording.
type Event struct {
	Kind       EventKind
	At         time.Duration // since the start
	Stream     string        // Output of pipes: stdout or stderr
	Text       string        // of output or input, a marker's, or the exit status
	Rows, Cols int           // Resize
}

// missingHere is the end of markers of the Recorder that tell of gaps.
const missingHere = "are missing here"

// IsGap reports whether the event is a marker where the Recorder could not record something.
func (e Event) IsGap() bool { return e.Kind == Marker && strings.HasSuffix(e.Text, missingHere) }

// ErrCut says that a recording has no proper end: the program or the machine that wrote it
// has crashed, or it is still being written.
var ErrCut = errors.New("the recording ends in the middle of an event")

// Limits of what a Reader accepts.
const (
	maxLine = 4 << 20 // bytes
	maxSide = 1000    // rows or columns of a terminal
	maxTime = 1000 * 24 * time.Hour
)

// longLineError says that no recording has such a line.
type longLineError struct{}

func (*longLineError) Error() string {
	return fmt.Sprintf("a line of the recording has more than %d bytes", maxLine)
}

// Reader reads a recording. It accepts asciicasts of the versions 2 and 3.
type Reader struct {
	header Header
	lines  *bufio.Reader
	at     time.Duration
	stream string
	failed error
}

// NewReader reads the header of a recording. Without a whole one it returns ErrCut.
func NewReader(r io.Reader) (*Reader, error) {
	reader := &Reader{lines: bufio.NewReaderSize(r, 8<<10), stream: stdout}
	line, err := reader.line()
	if errors.Is(err, io.EOF) {
		return nil, ErrCut
	}
	if err != nil {
		return nil, err
	}
	h := &reader.header
	var old struct{ Width, Height int }
	if err := json.Unmarshal(line, h); err != nil {
		return nil, fmt.Errorf("this is no asciicast: its first line is no header: %w", err)
	}
	switch h.Version {
	case 3:
	case 2:
		_ = json.Unmarshal(line, &old) // it is an object
		h.Term.Cols, h.Term.Rows = old.Width, old.Height
	default:
		return nil, fmt.Errorf("this is an asciicast of version %d; only 2 and 3 can be read", h.Version)
	}
	if h.Term.Cols < 1 || h.Term.Rows < 1 || h.Term.Cols > maxSide || h.Term.Rows > maxSide {
		return nil, fmt.Errorf("the terminal of the recording has %d rows and %d columns; each may be from 1 to %d", h.Term.Rows, h.Term.Cols, maxSide)
	}
	return reader, nil
}

// Header returns the header. Its texts come from other programs.
func (r *Reader) Header() Header { return r.header }

// Pipes reports whether the recording has streams instead of a terminal.
func (r *Reader) Pipes() bool { return r.header.ExecServer != nil && r.header.ExecServer.Pipes }

// Next returns the next event, io.EOF at the end, or ErrCut where the rest cannot be read.
func (r *Reader) Next() (Event, error) {
	for r.failed == nil {
		line, err := r.line()
		if err != nil {
			r.failed = err
			if errors.As(err, new(*longLineError)) {
				r.failed = ErrCut // what came before can be shown
			}
			break
		}
		if len(bytes.TrimSpace(line)) == 0 || line[0] == '#' {
			continue // a comment
		}
		event, known, err := r.parse(line)
		if err != nil {
			r.failed = ErrCut // after a crash of the machine, blocks of the file may have no content
			break
		}
		if known {
			return event, nil
		}
	}
	return Event{}, r.failed
}

// line returns the next line.
func (r *Reader) line() (line []byte, err error) {
	for {
		part, err := r.lines.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, &longLineError{}
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, ErrCut
		default:
			return nil, err
		}
	}
}

func (r *Reader) parse(line []byte) (e Event, known bool, err error) {
	var seconds float64
	var code, data string
	fields := []any{&seconds, &code, &data}
	if err := json.Unmarshal(line, &fields); err != nil {
		return Event{}, false, err
	}
	if len(fields) != 3 || !(seconds >= 0 && seconds < math.MaxInt32) || len(code) != 1 {
		return Event{}, false, errors.New("it is no event")
	}
	at := time.Duration(seconds * float64(time.Second))
	if r.header.Version == 3 {
		at += r.at
	}
	if r.at = max(at, r.at); r.at > maxTime {
		return Event{}, false, errors.New("it is too late")
	}
	e = Event{At: r.at, Text: data}
	switch code[0] {
	case codeOutput:
		if e.Kind = Output; r.Pipes() {
			e.Stream, e.Text = r.stream, strings.ReplaceAll(data, "\r\n", "\n")
		}
	case codeInput:
		e.Kind = Input
	case codeMarker:
		e.Kind = Marker
	case codeExit:
		e.Kind = Exit
	case codeStream:
		r.stream = data
		return e, false, nil
	case codeResize:
		e.Kind = Resize
		if n, err := fmt.Sscanf(data+"\n", "%dx%d\n", &e.Cols, &e.Rows); n != 2 || err != nil || min(e.Cols, e.Rows) < 1 || max(e.Cols, e.Rows) > maxSide {
			return e, false, nil
		}
	default:
		return e, false, nil
	}
	return e, true, nil
}
