package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// end describes the end of a log. The bytes that a crash or a full disk left after the
// last event stay there, and the next event has their hash.
type end struct {
	seq     uint64
	head    string // hash of the last event
	rest    string // hash of the bytes after it; "" if there are none
	unended bool   // the last line has no line end
}

// Beginning is the hash of the previous line in the first line of a chain.
var Beginning = strings.Repeat("0", 64)

// maxLineBytes is more than any line has.
const maxLineBytes = 1 << 20

// write writes events with one system call, all or none, and notifies the waiting
// callers.
func (l *Log) write(batch []waiting, lost uint64) error {
	err := l.tryWrite(batch, lost)
	if err != nil && time.Since(l.told) > time.Minute {
		l.told = time.Now()
		l.log.Error("cannot write the audit log", "file", l.path, "error", err)
	}
	for _, w := range batch {
		if w.written != nil {
			w.written <- err
		}
	}
	return err
}

func (l *Log) tryWrite(batch []waiting, lost uint64) error {
	if l.unsure {
		now, err := findEnd(l.file, l.end)
		if err != nil {
			return fmt.Errorf("read what was written of the audit log: %w", err)
		}
		l.end, l.unsure = now, false
	}
	seq, head := l.end.seq, l.end.head
	var text bytes.Buffer
	if l.end.unended {
		text.WriteByte('\n')
	}
	for i, w := range batch {
		seq++
		one := line{Seq: seq, Time: w.at.UTC().Format("2006-01-02T15:04:05.000000Z"), Event: w.event, Prev: head}
		if i == 0 {
			one.Lost, one.Torn = lost, l.end.rest
		}
		encoded, err := json.Marshal(one)
		if err != nil { // an event has only text and numbers
			panic(err)
		}
		head = hash(encoded)
		text.Write(encoded)
		text.WriteByte('\n')
	}
	n, err := l.file.Write(text.Bytes())
	if err != nil {
		l.unsure = n > 0 && undoWrite(l.file, n) != nil
		return err
	}
	l.end = end{seq: seq, head: head}
	return nil
}

// undoWrite removes n bytes from the end of a file.
func undoWrite(file *os.File, n int) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return file.Truncate(max(info.Size()-int64(n), 0))
}

// open opens the file and finds the end of its chain. An empty file continues the chain
// of the previous file.
func (l *Log) open() error {
	file, err := openFile(l.path)
	if err != nil {
		return fmt.Errorf("open the audit log %s: %w", l.path, err)
	}
	now, err := findEnd(file, l.end)
	if err != nil {
		_ = file.Close()
		return fmt.Errorf("read the end of the audit log %s: %w", l.path, err)
	}
	l.file, l.end, l.unsure = file, now, false
	return nil
}

// reopen opens the file under the log's name if that is another file now.
func (l *Log) reopen() error {
	ours, err := l.file.Stat()
	named, err2 := os.Lstat(l.path)
	if err == nil && err2 == nil && os.SameFile(ours, named) {
		return nil
	}
	old := l.file
	if err := l.open(); err != nil {
		return err
	}
	_ = old.Close()
	return l.write([]waiting{{event: Event{Event: "opened", Pid: os.Getpid()}, at: time.Now()}}, 0)
}

// replaceDeleted continues in a new file when the log has been deleted, because nobody
// could read the deleted file.
func (l *Log) replaceDeleted() {
	if !isDeleted(l.file) {
		return
	}
	l.log.Error("the audit log was deleted and continues in a new file", "file", l.path)
	if err := l.reopen(); err != nil {
		l.log.Error("cannot start a new audit log; the old file is still used", "error", err)
	}
}

// findEnd finds the last event of a file and the bytes after it. If the file has no event
// yet, its chain continues after before.
func findEnd(file *os.File, before end) (end, error) {
	info, err := file.Stat()
	if err != nil {
		return end{}, err
	}
	tail := make([]byte, min(info.Size(), maxLineBytes))
	if _, err := file.ReadAt(tail, info.Size()-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return end{}, err
	}
	whole := int64(len(tail)) == info.Size()
	found := end{seq: before.seq, head: before.head, unended: len(tail) > 0 && tail[len(tail)-1] != '\n'}
	for stop := len(tail); stop >= 0; {
		start := bytes.LastIndexByte(tail[:stop], '\n') + 1
		if start == 0 && !whole {
			break
		}
		if one, ok := parse(tail[start:stop]); ok {
			found.seq, found.head = one.Seq, hash(tail[start:stop])
			found.rest = hashOfRest(tail[min(stop+1, len(tail)):])
			return found, nil
		}
		stop = start - 1
	}
	if !whole || !isBeginning(tail) {
		return end{}, errors.New("there is no event in it; if it is an audit log, rename it, and a new one is made")
	}
	found.rest = hashOfRest(tail)
	return found, nil
}

// hashOfRest returns the hash of lines that are not events, without the last line end; ""
// if there are none.
func hashOfRest(lines []byte) string {
	if len(lines) == 0 {
		return ""
	}
	return hash(bytes.TrimSuffix(lines, []byte("\n")))
}

// parse parses an event.
func parse(text []byte) (one line, ok bool) {
	err := json.Unmarshal(text, &one)
	return one, err == nil && one.Seq > 0 && one.Event.Event != "" && len(one.Prev) == len(Beginning)
}

// isBeginning reports whether text may be the rest of a first line after a crash.
func isBeginning(text []byte) bool {
	const begin = `{"seq":`
	text = bytes.Trim(text, "\x00")
	return bytes.HasPrefix(text, []byte(begin)) || strings.HasPrefix(begin, string(text))
}

// hash returns the hash of a line.
func hash(line []byte) string {
	sum := sha256.Sum256(line)
	return hex.EncodeToString(sum[:])
}
