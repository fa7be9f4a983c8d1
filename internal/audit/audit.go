// Package audit records events in a log, one JSON object to a line.
//
// Start at [Open] and [Log.Record].
package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
	"unicode/utf8"
)

// Event is one event of the log. Members that do not apply are absent.
type Event struct {
	Event      string   `json:"event"`
	Remote     string   `json:"remote,omitempty"`
	Principal  string   `json:"principal,omitempty"`
	Session    string   `json:"session,omitempty"`
	Process    string   `json:"process,omitempty"`
	Pid        int      `json:"pid,omitempty"`
	Method     string   `json:"method,omitempty"`
	Argv       []string `json:"argv,omitempty"`
	Cut        bool     `json:"cut,omitempty"` // argv, paths or a text was shortened
	Cwd        string   `json:"cwd,omitempty"`
	Sandbox    string   `json:"sandbox,omitempty"`
	Paths      []string `json:"paths,omitempty"`
	Signal     string   `json:"signal,omitempty"`
	ExitCode   *int     `json:"exitCode,omitempty"`
	EndedBy    string   `json:"endedBy,omitempty"`
	Name       string   `json:"name,omitempty"`    // of a session
	Machine    string   `json:"machine,omitempty"` // of a fleet
	KeepMs     *uint64  `json:"keepMs,omitempty"`  // a session's lease
	Reason     string   `json:"reason,omitempty"`
	Suppressed uint64   `json:"suppressed,omitempty"` // similar refusals that were not written
	Lost       uint64   `json:"lost,omitempty"`       // earlier events that could not be written
}

// line is an event as the log spells it.
type line struct {
	Time string `json:"time"`
	Event
}

// Bounds of the recorded part of an event, and of the events that wait.
const (
	maxTextBytes = 4 << 10 // of argv, of the paths, and of each other text
	maxWaiting   = 8192
	maxRefusals  = 20 // written in one second
)

// StandardError is the path of a log that goes to standard error.
const StandardError = "-"

var errClosed = errors.New("it is closed")

// Log is an audit log. All methods may be called concurrently. The methods of a nil *Log
// do nothing.
type Log struct {
	path     string
	required bool
	log      *slog.Logger

	mu       sync.Mutex
	waiting  []waiting
	lost     uint64 // since the last event that was written
	everLost uint64
	closed   bool
	more     chan struct{} // has one element while there is work
	done     chan struct{}
	second   int64 // of the last refusal
	refusals int
	ignored  uint64

	writing sync.Mutex // guards the fields below; held while the file is written
	file    *os.File
	torn    bool // the file does not end with a line end
	ended   bool // the file is closed
	told    time.Time
}

// waiting is an event that waits to be written.
type waiting struct {
	event   Event
	at      time.Time
	written chan<- error // nil: no caller waits
}

// Open opens an audit log for appending, or creates it with mode 0600. If required is true,
// Commit returns an error for an event that it cannot write.
func Open(path string, required bool, log *slog.Logger) (*Log, error) {
	file, torn, err := openLog(path)
	if err != nil {
		return nil, err
	}
	l := &Log{path: path, required: required, log: log, more: make(chan struct{}, 1), done: make(chan struct{}), file: file, torn: torn}
	go l.run()
	l.Record(Event{Event: "opened", Pid: os.Getpid()})
	return l, nil
}

// Record writes an event, without waiting for it.
func (l *Log) Record(e Event) {
	if l != nil {
		l.add(waiting{event: e})
	}
}

// Commit writes an event. If the log is required, it waits until the event is written;
// after an error the caller must not carry out the action.
func (l *Log) Commit(e Event) error {
	if l == nil {
		return nil
	}
	if !l.required {
		l.Record(e)
		return nil
	}
	written := make(chan error, 1)
	l.add(waiting{event: e, written: written})
	if err := <-written; err != nil {
		return fmt.Errorf("refused, because it cannot be written to the audit log: %w", err)
	}
	return nil
}

// Lost returns how many events could not be written since the log was opened.
func (l *Log) Lost() uint64 {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.everLost
}

// Ready returns why Commit would return an error now, or nil. If the last event could not
// be written, it writes one, "checked", because nothing else shows that the log works
// again.
func (l *Log) Ready() error {
	if l == nil || !l.required {
		return nil
	}
	l.mu.Lock()
	works := l.lost == 0 && !l.closed
	l.mu.Unlock()
	if works {
		return nil
	}
	return l.Commit(Event{Event: "checked"})
}

// Refused is Record for a client that was not admitted. It writes only some of them, so
// that such clients cannot fill the disk.
func (l *Log) Refused(e Event) {
	if l == nil {
		return
	}
	l.mu.Lock()
	if now := time.Now().Unix(); now != l.second {
		l.second, l.refusals = now, 0
	}
	l.refusals++
	if l.refusals > maxRefusals {
		l.ignored++
		l.mu.Unlock()
		return
	}
	e.Suppressed, l.ignored = l.ignored, 0
	l.mu.Unlock()
	l.Record(e)
}

// Reopen opens the file under the log's name again, which another program may have renamed.
// After an error the log continues in the file that it has.
func (l *Log) Reopen() error {
	if l == nil || l.path == StandardError {
		return nil
	}
	file, torn, err := openLog(l.path)
	if err != nil {
		return err
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.ended {
		return errors.Join(errClosed, file.Close())
	}
	old := l.file
	l.file, l.torn = file, torn
	return old.Close()
}

// Close writes the waiting events and a last event, "closed". If that event is missing,
// the program was killed or lines are missing.
func (l *Log) Close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	if !l.closed {
		l.waiting = append(l.waiting, waiting{event: Event{Event: "closed", Pid: os.Getpid(), Suppressed: l.ignored}, at: time.Now()})
	}
	l.closed = true
	l.mu.Unlock()
	l.wake()
	<-l.done
}

func (l *Log) add(w waiting) {
	w.at = time.Now()
	w.event.bound()
	l.mu.Lock()
	var refused error
	switch {
	case l.closed:
		refused = errClosed
	case len(l.waiting) >= maxWaiting:
		refused = errors.New("too much waits to be written")
		l.lost++
		l.everLost++
	default:
		l.waiting = append(l.waiting, w)
	}
	l.mu.Unlock()
	if refused != nil && w.written != nil {
		w.written <- refused
	}
	l.wake()
}

func (l *Log) wake() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// bound shortens texts that are too long, and converts texts that are not UTF-8.
func (e *Event) bound() {
	room := maxTextBytes
	for _, list := range []*[]string{&e.Argv, &e.Paths} {
		var kept []string
		for _, text := range *list {
			short, less := cut(text, room)
			e.Cut = e.Cut || less
			room -= len(short) + 1
			kept = append(kept, short)
			if room <= 0 {
				e.Cut = e.Cut || len(kept) < len(*list)
				break
			}
		}
		*list = kept
	}
	for _, text := range []*string{&e.Remote, &e.Principal, &e.Process, &e.Method, &e.Cwd, &e.Sandbox, &e.Reason} {
		short, less := cut(*text, maxTextBytes)
		e.Cut = e.Cut || less
		*text = short
	}
}

// cut cuts a text to n bytes, and quotes it if it is not UTF-8.
func cut(text string, n int) (short string, less bool) {
	n = max(n, 0)
	if less = len(text) > n; less {
		text = text[:n]
		for range utf8.UTFMax - 1 { // of a character that was cut
			if r, size := utf8.DecodeLastRuneInString(text); r != utf8.RuneError || size != 1 {
				break
			}
			text = text[:len(text)-1]
		}
	}
	if !utf8.ValidString(text) {
		if text = fmt.Sprintf("%q", text); len(text) > n {
			return text[:n], true
		}
	}
	return text, less
}

// run writes until the log is closed.
func (l *Log) run() {
	defer close(l.done)
	for range l.more {
		l.mu.Lock()
		batch, lost, closed := l.waiting, l.lost, l.closed
		l.waiting = nil
		l.mu.Unlock()
		if len(batch) > 0 {
			l.write(batch, lost)
		}
		if closed {
			l.end()
			return
		}
	}
}

// end closes the file.
func (l *Log) end() {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.ended = true
	if l.path != StandardError {
		_ = l.file.Close()
	}
}

// write writes events with one system call, the first with the number of those that were
// lost before, and answers the callers that wait. A full disk may hold only some of them.
func (l *Log) write(batch []waiting, lost uint64) {
	l.writing.Lock()
	defer l.writing.Unlock()
	var text []byte
	if l.torn {
		text = append(text, '\n') // an incomplete line must not swallow the next
	}
	ends := make([]int, len(batch))
	batch[0].event.Lost = lost
	for i, w := range batch {
		encoded, err := json.Marshal(line{w.at.UTC().Format("2006-01-02T15:04:05.000000Z"), w.event})
		if err != nil { // an event has only text and numbers
			panic(err)
		}
		text = append(append(text, encoded...), '\n')
		ends[i] = len(text)
	}
	n, err := l.file.Write(text)
	if n > 0 {
		l.torn = text[n-1] != '\n'
	}
	if err != nil && time.Since(l.told) > time.Minute {
		l.told = time.Now()
		l.log.Error("cannot write the audit log", "file", l.path, "error", err)
	}
	failed := uint64(0)
	l.mu.Lock()
	for _, end := range ends {
		if end > n {
			failed++
		}
	}
	if ends[0] <= n {
		l.lost -= lost // further ones may have been lost meanwhile
	}
	l.lost += failed
	l.everLost += failed
	l.mu.Unlock()
	for i, w := range batch {
		switch {
		case w.written == nil:
		case ends[i] <= n:
			w.written <- nil
		default:
			w.written <- err
		}
	}
}

// openLog opens the file of a log, or creates it. torn means that it does not end with a
// line end, as after a crash.
func openLog(path string) (file *os.File, torn bool, err error) {
	if path == StandardError {
		return os.Stderr, false, nil
	}
	file, err = openFile(path)
	if err != nil {
		return nil, false, fmt.Errorf("open the audit log %s: %w", path, err)
	}
	info, err := file.Stat()
	if err == nil && info.Size() > 0 {
		var last [1]byte
		_, err = file.ReadAt(last[:], info.Size()-1)
		torn = last[0] != '\n'
	}
	if err != nil {
		_ = file.Close()
		return nil, false, fmt.Errorf("read the end of the audit log %s: %w", path, err)
	}
	return file, torn, nil
}
