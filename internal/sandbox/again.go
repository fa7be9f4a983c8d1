package sandbox

import (
	"io/fs"
	"os"
	"time"
)

// While a pattern is being expanded, a file may move from a directory that was not read
// yet to one that was. A single pass would miss it. So the expansion reads the
// directories that have changed again. A program that keeps moving files changes them
// again and again; then the files found in any of the reads count.

// visit is a directory to read for the rest of a pattern.
type visit struct {
	dir   string
	parts int // the number of parts of the pattern that are left
	deep  int // the number of directories that "**" has matched already
}

// reading is the result of a visit.
type reading struct {
	parts []part
	info  fs.FileInfo // of the directory, before it was read
	at    time.Time
}

const (
	maxReadings = 4
	// coarse exceeds the lag of the kernel's clock for file changes, and the time that it
	// takes to continue. A directory that changed so shortly before it was read may
	// change again without getting another time.
	coarse = 20 * time.Millisecond
)

// readChanged reads a directory, unless the earlier result still holds.
func (e *expansion) readChanged(v visit, parts []part) ([]fs.DirEntry, error) {
	info, err := os.Stat(v.dir)
	if err != nil {
		return nil, err
	}
	if old, ok := e.readings[v]; ok && old.holds(info) {
		return nil, nil
	}
	one := reading{parts: parts, info: info, at: time.Now()}
	entries, err := os.ReadDir(v.dir)
	if err == nil {
		e.readings[v] = one
	}
	return entries, err
}

// holds reports whether a directory is unchanged since it was read.
func (l reading) holds(now fs.FileInfo) bool {
	changed := changeTime(now)
	return os.SameFile(l.info, now) && changeTime(l.info).Equal(changed) && l.at.Sub(changed) > coarse
}

// rereadChanged reads the directories that have changed again. When a directory
// disappears, its parent has changed.
func (e *expansion) rereadChanged() error {
	defer func() { e.again = false }()
	for range maxReadings - 1 {
		now := make(map[string]fs.FileInfo)
		var changed []visit
		for v, l := range e.readings {
			info, ok := now[v.dir]
			if !ok {
				info, _ = os.Stat(v.dir)
				now[v.dir] = info
			}
			if info != nil && !l.holds(info) {
				changed = append(changed, v)
			}
		}
		if len(changed) == 0 || time.Now().After(e.deadline) {
			return nil
		}
		e.again, e.moved = true, true
		for _, v := range changed {
			if err := e.walk(v.dir, e.readings[v].parts, v.deep); err != nil {
				return err
			}
		}
	}
	return nil
}
