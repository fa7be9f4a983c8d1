package sandbox

import (
	"io/fs"
	"os"
	"time"
)

// What is moved while a pattern is expanded, from where nobody has looked yet to
// where somebody has, would be missed. So directories that have changed since are
// looked into again. Whoever goes on moving things changes them again and again;
// then what was found in any of the looks counts.

// visit is to look into a directory for the rest of a pattern.
type visit struct {
	dir   string
	parts int // how many are left of the pattern
	deep  int // how far "**" has gone already
}

// look is what there is to know of a visit that has been made.
type look struct {
	parts []part
	info  fs.FileInfo // of the directory, before it was read
	at    time.Time
}

const (
	maxLooks = 4
	// coarse is more than the kernel's clock for changes of files is behind, and more than it
	// takes to go on. A directory that has changed so shortly before it was read can
	// change again without another time of it.
	coarse = 20 * time.Millisecond
)

// look reads a directory, unless what was read there is still true.
func (e *expansion) look(v visit, parts []part) ([]fs.DirEntry, error) {
	info, err := os.Stat(v.dir)
	if err != nil {
		return nil, err
	}
	if old, ok := e.looked[v]; ok && old.holds(info) {
		return nil, nil
	}
	one := look{parts: parts, info: info, at: time.Now()}
	entries, err := os.ReadDir(v.dir)
	if err == nil {
		e.looked[v] = one
	}
	return entries, err
}

// holds reports whether what was read in a directory is still true.
func (l look) holds(now fs.FileInfo) bool {
	changed := changeTime(now)
	return os.SameFile(l.info, now) && changeTime(l.info).Equal(changed) && l.at.Sub(changed) > coarse
}

// lookAgain looks into the directories again that have changed. What is not there
// any more has changed the directory that it was in.
func (e *expansion) lookAgain() error {
	defer func() { e.again = false }()
	for range maxLooks - 1 {
		now := make(map[string]fs.FileInfo)
		var changed []visit
		for v, l := range e.looked {
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
			if err := e.walk(v.dir, e.looked[v].parts, v.deep); err != nil {
				return err
			}
		}
	}
	return nil
}
