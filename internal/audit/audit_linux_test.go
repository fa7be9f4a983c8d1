//go:build unix

package audit_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"execserver/internal/audit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, path string) *audit.Log {
	t.Helper()
	l, err := audit.Open(path, true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// whole expects files to be a chain, and returns what it has found.
func whole(t *testing.T, paths ...string) (chain *audit.Chain) {
	t.Helper()
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err == nil {
			chain, err = audit.Verify(bytes.NewReader(content), chain)
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", path, err, content)
		}
	}
	return chain
}

func commit(t *testing.T, l *audit.Log, e audit.Event) {
	t.Helper()
	if err := l.Commit(e); err != nil {
		t.Fatal(err)
	}
}

// TestChain writes from many sides, goes on after a restart and in a new file, and has
// every change found out.
func TestChain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := open(t, path)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode is %v, %v", info.Mode(), err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				l.Record(audit.Event{Event: "start", Argv: []string{"a", fmt.Sprint(i), "\xff\n\"<é"}})
			}
		})
	}
	wg.Wait()
	l.Close()
	l = open(t, path)
	commit(t, l, audit.Event{Event: "second"})
	if n := whole(t, path).Lines; n != 403 {
		t.Errorf("%d lines, want 403", n)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	commit(t, l, audit.Event{Event: "after the rename, and before the signal"})
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	commit(t, l, audit.Event{Event: "third"})
	if err := l.Reopen(); err != nil { // nothing was renamed
		t.Fatal(err)
	}
	l.Close()
	if n := whole(t, path+".1", path).Lines; n != 2 {
		t.Errorf("%d lines in the new file, want 2", n)
	}
	whole(t, path)

	good, err := os.ReadFile(path + ".1")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(good), "\n")
	for name, text := range map[string]string{
		"a changed line":       strings.Replace(string(good), `"a"`, `"b"`, 1),
		"a line left out":      strings.Join(append(append([]string{}, lines[:5]...), lines[6:]...), ""),
		"a line twice":         strings.Join(append(append([]string{}, lines[:6]...), lines[5:]...), ""),
		"two lines exchanged":  strings.Join(append(append([]string{}, lines[:5]...), append([]string{lines[6], lines[5]}, lines[7:]...)...), ""),
		"a line put in":        strings.Join(append(append([]string{}, lines[:5]...), append([]string{`{"seq":6,"event":"x","prev":"` + audit.Beginning + `"}` + "\n"}, lines[5:]...)...), ""),
		"a line that is no":    strings.Join(append(append([]string{}, lines[:5]...), append([]string{"x\n"}, lines[5:]...)...), ""),
		"another space":        strings.Replace(string(good), `{"seq":3,`, `{"seq":3, `, 1),
		"an end that is torn":  string(good[:len(good)-3]),
		"nothing":              "",
		"another first number": strings.Join(lines[1:], "") + lines[0],
	} {
		if _, err := audit.Verify(strings.NewReader(text), nil); err == nil {
			t.Errorf("%s is not found out", name)
		}
	}
	// Cut off at the end it is still a chain, of which the head is another.
	cut, err := audit.Verify(strings.NewReader(strings.Join(lines[:9], "")), nil)
	if err != nil || cut.Head == whole(t, path+".1").Head {
		t.Errorf("cut off: %v", err)
	}
}

// TestTorn goes on after a line that a crash has cut short.
func TestTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := open(t, path)
	commit(t, l, audit.Event{Event: "one"})
	l.Close()
	content, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, content[:len(content)-20], 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	l = open(t, path)
	commit(t, l, audit.Event{Event: "two"})
	l.Close()
	whole(t, path)
}

// TestOpenRefuses has what is no log of one's own in the place of one.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte("precious\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/readable", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	used := open(t, dir+"/used")
	commit(t, used, audit.Event{Event: "x"})
	for path, want := range map[string]string{
		dir + "/link": "too many levels of symbolic links", dir + "/readable": "chmod 600", dir: "is a directory",
		dir + "/used": "another server writes to it", dir + "/no/such": "no such file", "/dev/null": "not a regular file",
	} {
		if l, err := audit.Open(path, true, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
			if l != nil {
				l.Close()
			}
		}
	}
	if content, _ := os.ReadFile(target); string(content) != "precious\n" {
		t.Errorf("the target of the link is %q", content)
	}
}

// TestBounds has those outside try to fill the disk, and a client with long texts.
func TestBounds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := open(t, path)
	for range 10_000 {
		l.Refused(audit.Event{Event: "authentication refused", Reason: "x"})
	}
	long := strings.Repeat("\x01", 1<<20)
	commit(t, l, audit.Event{Event: "start", Argv: []string{long, long}, Reason: long, Cwd: long})
	commit(t, l, audit.Event{Event: "start", Argv: make([]string, 1<<20)})
	l.Close()
	info, err := os.Stat(path)
	if err != nil || info.Size() > 300<<10 {
		t.Errorf("the log has %d bytes, %v", info.Size(), err)
	}
	whole(t, path)
}
