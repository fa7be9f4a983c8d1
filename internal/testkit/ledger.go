//go:build unix

package testkit

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Tests is what TestMain gets.
type Tests interface{ Run() int }

// Ledger returns tests that fail when the descriptors that are open after them are
// not those that were open before: one that is left was not closed, and one that is
// gone was closed by somebody who did not own it. The runtime's own are explained,
// and so is one of each kind in explained, which are the beginnings of their names,
// such as "socket:".
func Ledger(m Tests, explained ...string) Tests { return ledger{m, explained, 5 * time.Second} }

type ledger struct {
	Tests
	explained []string
	patience  time.Duration // for what is about to be closed
}

// sentinels is how many descriptors are held during the tests, for those to hit
// who close a number twice.
const sentinels = 8

func (l ledger) Run() int {
	for range sentinels {
		if r, w, err := os.Pipe(); err == nil {
			defer r.Close()
			defer w.Close()
		}
	}
	before := openDescriptors()
	code := l.Tests.Run()
	if code != 0 || before == nil {
		return code
	}
	deadline := time.Now().Add(l.patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		wrong := l.wrong(before)
		if len(wrong) == 0 {
			return 0
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(os.Stderr, "descriptors:", strings.Join(wrong, "; "))
			return 1
		}
		time.Sleep(pause)
	}
}

// wrong lists what differs from before and is not explained.
func (l ledger) wrong(before map[string]string) (wrong []string) {
	now, explained := openDescriptors(), slices.Clone(l.explained)
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

// openDescriptors names what is open, by number; nil where that is not told.
func openDescriptors() map[string]string {
	const dir = "/proc/self/fd/"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	open := make(map[string]string)
	for _, e := range entries {
		if target, err := os.Readlink(dir + e.Name()); err == nil { // else it was that of the directory
			open[e.Name()] = target
		}
	}
	return open
}
