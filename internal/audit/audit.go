// Package audit writes down what has happened, so that nobody can change it later
// without being found out: each line of the log has the hash of the line before.
//
// Start at [Open] and [Log.Record]. [Verify] checks a log.
package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Event is something that has happened. What does not apply is left out.
type Event struct {
	Event      string   `json:"event"`
	Remote     string   `json:"remote,omitempty"`
	Principal  string   `json:"principal,omitempty"`
	Session    string   `json:"session,omitempty"`
	Process    string   `json:"process,omitempty"`
	Pid        int      `json:"pid,omitempty"`
	Method     string   `json:"method,omitempty"`
	Argv       []string `json:"argv,omitempty"`
	Cut        bool     `json:"cut,omitempty"` // argv, paths or a text is longer
	Cwd        string   `json:"cwd,omitempty"`
	Sandbox    string   `json:"sandbox,omitempty"`
	Paths      []string `json:"paths,omitempty"`
	Signal     string   `json:"signal,omitempty"`
	ExitCode   *int     `json:"exitCode,omitempty"`
	EndedBy    string   `json:"endedBy,omitempty"`
	Reason     string   `json:"reason,omitempty"`
	Suppressed uint64   `json:"suppressed,omitempty"` // refusals like this one that were not written
	Lost       uint64   `json:"lost,omitempty"`       // events before this one that could not be written
	Torn       bool     `json:"torn,omitempty"`       // the line before was not written to its end
}

// line is an event as it stands in the log.
type line struct {
	Seq  uint64 `json:"seq"`
	Time string `json:"time"`
	Event
	Prev string `json:"prev"`
}

// Bounds of what is kept of an event, and of what waits to be written.
const (
	maxTextBytes = 4 << 10 // of the argv together, of the paths, and of each other text
	maxWaiting   = 8192
	maxRefusals  = 20 // of those who have not come in, in one second
)

// Log is an audit log. All methods may be called concurrently; those of a nil *Log do
// nothing.
type Log struct {
	path     string
	required bool
	log      *slog.Logger

	mu       sync.Mutex
	waiting  []waiting
	lost     uint64
	closed   bool
	more     chan struct{} // has one element when there is something to do
	done     chan struct{}
	second   int64 // of the refusals
	refusals int
	ignored  uint64

	file   *os.File // the writer's own, as all that follows
	size   int64
	seq    uint64
	head   string // hash of the last line
	broken error  // nothing can be written until the file is opened again
	told   time.Time
}

// waiting is an event that has not been written, or the wish for another file.
type waiting struct {
	event   Event
	at      time.Time
	reopen  bool
	written chan<- error // nil: nobody waits
}

// Open opens an audit log, or makes it. required says that Commit reports what could
// not be written.
func Open(path string, required bool, log *slog.Logger) (*Log, error) {
	l := &Log{path: path, required: required, log: log, more: make(chan struct{}, 1), done: make(chan struct{}), head: strings.Repeat("0", 64)}
	torn, err := l.open()
	if err != nil {
		return nil, err
	}
	go l.run()
	l.Record(Event{Event: "opened", Pid: os.Getpid(), Torn: torn})
	return l, nil
}

// Record has an event written, some time soon.
func (l *Log) Record(e Event) {
	if l != nil {
		l.add(waiting{event: e})
	}
}

// Commit has an event written, and waits for that where the log is required: what it is
// about must not happen after an error.
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
		return fmt.Errorf("refused, because it cannot be written to the audit log (--audit-required): %w", err)
	}
	return nil
}

// Refused is Record for somebody who has not come in, and who must not fill the disk.
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

// Reopen goes on in a new file if the log has been renamed.
func (l *Log) Reopen() error {
	if l == nil {
		return nil
	}
	written := make(chan error, 1)
	l.add(waiting{reopen: true, written: written})
	return <-written
}

// Close writes what waits.
func (l *Log) Close() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.wake()
	<-l.done
}

func (l *Log) add(w waiting) {
	w.at = time.Now()
	w.event.bound()
	l.mu.Lock()
	full := len(l.waiting) >= maxWaiting || l.closed
	if full {
		l.lost++
	} else {
		l.waiting = append(l.waiting, w)
	}
	l.mu.Unlock()
	if full && w.written != nil {
		w.written <- errors.New("too much waits to be written")
	}
	l.wake()
}

func (l *Log) wake() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// bound cuts what is too long, and makes text of what is none.
func (e *Event) bound() {
	room := maxTextBytes
	for _, list := range []*[]string{&e.Argv, &e.Paths} {
		var kept []string
		for _, text := range *list {
			short := cut(text, room)
			e.Cut = e.Cut || len(short) < len(text)
			room -= len(short) + 1
			kept = append(kept, short)
			if room <= 0 {
				e.Cut = e.Cut || len(kept) < len(*list)
				break
			}
		}
		*list = kept
	}
	for _, text := range []*string{&e.Remote, &e.Principal, &e.Process, &e.Method, &e.Cwd, &e.Reason} {
		short := cut(*text, maxTextBytes)
		e.Cut = e.Cut || len(short) < len(*text)
		*text = short
	}
}

// cut cuts a text to n bytes, and quotes what is not UTF-8.
func cut(text string, n int) string {
	if !utf8.ValidString(text) {
		text = fmt.Sprintf("%q", text)
	}
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:max(n, 0)], "")
}

// run writes until the log is closed.
func (l *Log) run() {
	defer close(l.done)
	for range l.more {
		l.mu.Lock()
		batch, lost, closed := l.waiting, l.lost, l.closed
		l.waiting, l.lost = nil, 0
		l.mu.Unlock()
		for len(batch) > 0 {
			n := 0
			for n < len(batch) && !batch[n].reopen {
				n++
			}
			if n > 0 {
				if err := l.write(batch[:n], lost); err == nil {
					lost = 0
				} else {
					lost += uint64(n)
				}
			} else {
				batch[0].written <- l.reopen()
				n = 1
			}
			batch = batch[n:]
		}
		l.mu.Lock()
		l.lost += lost
		l.mu.Unlock()
		if closed {
			_ = l.file.Close()
			return
		}
	}
}

// write writes events with one system call, all or none, and tells those who wait.
func (l *Log) write(batch []waiting, lost uint64) error {
	seq, head := l.seq, l.head
	var text bytes.Buffer
	for i, w := range batch {
		seq++
		one := line{Seq: seq, Time: w.at.UTC().Format("2006-01-02T15:04:05.000000Z"), Event: w.event, Prev: head}
		if i == 0 {
			one.Lost = lost
		}
		encoded, err := json.Marshal(one)
		if err != nil { // it is made of text and numbers
			panic(err)
		}
		head = hash(encoded)
		text.Write(encoded)
		text.WriteByte('\n')
	}
	err := l.broken
	if err == nil {
		if _, err = l.file.Write(text.Bytes()); err == nil {
			l.seq, l.head, l.size = seq, head, l.size+int64(text.Len())
		} else if undo := l.file.Truncate(l.size); undo != nil {
			l.broken = fmt.Errorf("%w; what was written of it cannot be taken back: %w", err, undo)
		}
	}
	if err != nil && time.Since(l.told) > time.Minute {
		l.told = time.Now()
		l.log.Error("the audit log cannot be written", "file", l.path, "error", err)
	}
	for _, w := range batch {
		if w.written != nil {
			w.written <- err
		}
	}
	return err
}

// open opens the file, and reads where its chain ends. A file that is empty goes on with
// the chain of the one before.
func (l *Log) open() (torn bool, err error) {
	file, err := openFile(l.path)
	if err != nil {
		return false, fmt.Errorf("open the audit log %s: %w", l.path, err)
	}
	info, err := file.Stat()
	var last []byte
	if err == nil && info.Size() > 0 {
		last, torn, err = lastLine(file, info.Size())
	}
	if err == nil && torn {
		_, err = file.WriteString("\n")
	}
	if err != nil {
		_ = file.Close()
		return false, fmt.Errorf("read the end of the audit log %s: %w", l.path, err)
	}
	l.file, l.size, l.broken = file, info.Size(), nil
	if torn {
		l.size++
	}
	if last != nil {
		var before line
		_ = json.Unmarshal(last, &before) // a torn one has no number
		l.seq, l.head = before.Seq, hash(last)
	}
	return torn, nil
}

// reopen opens the file under the log's name if it is another one by now.
func (l *Log) reopen() error {
	ours, err := l.file.Stat()
	named, err2 := os.Lstat(l.path)
	if err == nil && err2 == nil && os.SameFile(ours, named) && l.broken == nil {
		return nil
	}
	old := l.file
	torn, err := l.open()
	if err != nil {
		return err
	}
	_ = old.Close()
	return l.write([]waiting{{event: Event{Event: "opened", Pid: os.Getpid(), Torn: torn}, at: time.Now()}}, 0)
}

// maxLineBytes is more than a line has.
const maxLineBytes = 1 << 20

// lastLine returns the last line of a file, and whether it has no end.
func lastLine(file *os.File, size int64) (last []byte, torn bool, err error) {
	tail := make([]byte, min(size, maxLineBytes))
	if _, err := file.ReadAt(tail, size-int64(len(tail))); err != nil {
		return nil, false, err
	}
	torn = tail[len(tail)-1] != '\n'
	if !torn {
		tail = tail[:len(tail)-1]
	}
	if i := bytes.LastIndexByte(tail, '\n'); i >= 0 {
		return tail[i+1:], torn, nil
	}
	if int64(len(tail)) < size-1 {
		return nil, false, errors.New("it is no audit log: its last line is too long")
	}
	return tail, torn, nil
}

// hash is the hash of a line.
func hash(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}
