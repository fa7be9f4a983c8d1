//go:build unix

package testkit

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// Tests is the part of testing.M that TestMain needs.
type Tests interface{ Run() int }

// Ledger returns tests that fail unless the same descriptors are open after them as
// before. A new one has leaked; code that did not own a missing one has closed it. The
// runtime may open descriptors of its own. The tests may leave one descriptor open for
// each prefix in explained, such as "socket:".
func Ledger(m Tests, explained ...string) Tests { return ledger{m, explained, Patience} }

type ledger struct {
	Tests
	explained []string
	patience  time.Duration // for what is about to be closed
}

// sentinels is the number of descriptors that are open during the tests for no other
// reason than that code which closes a number twice would close one of them.
const sentinels = 8

func (l ledger) Run() int {
	for range sentinels {
		if r, w, err := os.Pipe(); err == nil {
			defer r.Close()
			defer w.Close()
		}
	}
	table, err := os.OpenRoot("/proc/self/fd")
	if err != nil {
		return l.Tests.Run() // open descriptors cannot be listed here
	}
	defer table.Close()
	before := openDescriptors(table)
	code := l.Tests.Run()
	if code != 0 {
		return code
	}
	wrong := settled(l.patience, func() []string { return l.wrong(before, openDescriptors(table)) })
	if len(wrong) > 0 {
		fmt.Fprintln(os.Stderr, "descriptors:", strings.Join(wrong, "; "))
		return 1
	}
	return 0
}

// settled waits until nothing is wrong, or returns what is wrong when patience has passed.
func settled(patience time.Duration, wrong func() []string) (left []string) {
	deadline := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left = wrong()
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		time.Sleep(pause)
	}
}

// wrong lists the unexplained differences from the descriptors open before.
func (l ledger) wrong(before, now map[string]string) (wrong []string) {
	explained := slices.Clone(l.explained)
	for fd, name := range before {
		if now[fd] != name {
			wrong = append(wrong, fmt.Sprintf("%s, %s, was closed and is now %q", fd, name, now[fd]))
		}
	}
	for fd, name := range now {
		if _, ok := before[fd]; ok || name == "anon_inode:[eventpoll]" || name == "anon_inode:[eventfd]" {
			continue
		}
		if i := slices.IndexFunc(explained, func(e string) bool { return strings.HasPrefix(name, e) }); i >= 0 {
			explained = slices.Delete(explained, i, i+1)
			continue
		}
		wrong = append(wrong, fmt.Sprintf("%s, %s, is left", fd, name))
	}
	return wrong
}

// openDescriptors returns the names of the open descriptors by number. It reads a
// directory that was opened before the tests, because a test may hide /proc.
func openDescriptors(table *os.Root) map[string]string {
	open := make(map[string]string)
	entries, err := fs.ReadDir(table.FS(), ".")
	if err != nil {
		return open
	}
	for _, e := range entries {
		if target, err := table.Readlink(e.Name()); err == nil { // else it was that of the directory
			open[e.Name()] = target
		}
	}
	return open
}
