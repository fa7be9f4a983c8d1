package audit_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"execserver/internal/audit"
	"execserver/internal/testkit"
)

func TestMain(m *testing.M) { testkit.VerifyMain(m) }

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
	if n := whole(t, path).Lines; n != 404 {
		t.Errorf("%d lines, want 404", n)
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
	if n := whole(t, path+".1", path).Lines; n != 3 {
		t.Errorf("%d lines in the new file, want 3", n)
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
		"no event at all":      "{}\n",
		"an event of nothing":  "null\n" + string(good),
		"a number left out":    `{"seq":2,"event":"x","prev":"` + audit.Beginning + `"}` + "\n",
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

// TestTorn goes on after a line that a crash has cut short wherever it may, twice in a
// row, and after what a crash of the machine may leave. Nothing of it can be changed.
func TestTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := open(t, path)
	commit(t, l, audit.Event{Event: "one"})
	l.Close()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first := bytes.IndexByte(content, '\n') + 1
	for cut := 0; cut < len(content); {
		text := content[:len(content)-cut]
		for range 2 {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			l := open(t, path)
			commit(t, l, audit.Event{Event: "two"})
			l.Close()
			whole(t, path)
			if text, err = os.ReadFile(path); err != nil {
				t.Fatal(err)
			}
			if cut%40 == 1 && cut < len(content)-first {
				expectChangesFound(t, string(text))
			}
			text = text[:len(text)-len(content)/4] // in what the second start has written
		}
		if cut++; cut > 40 { // the ends of a line are what matters, and some of the rest
			cut += 6
		}
	}
	for _, left := range []string{"\x00\x00\x00", "\n", "\n\n", "x\n", "{}\n", "x\n\x00", `{"seq":`} {
		if err := os.WriteFile(path, append(bytes.Clone(content), left...), 0o600); err != nil {
			t.Fatal(err)
		}
		l := open(t, path)
		l.Close()
		whole(t, path)
	}
}

// expectChangesFound takes away, changes and repeats each line of a log but the last.
func expectChangesFound(t *testing.T, log string) {
	t.Helper()
	lines := strings.SplitAfter(log, "\n")
	lines = lines[:len(lines)-1]
	for i := range len(lines) - 1 {
		for _, with := range []string{"", strings.Replace(lines[i], "e", "E", 1), lines[i] + lines[i], "x\n" + lines[i]} {
			if i == 0 && with == "" {
				continue // it is a log then whose beginning is in another file
			}
			changed := strings.Join(lines[:i], "") + with + strings.Join(lines[i+1:], "")
			if _, err := audit.Verify(strings.NewReader(changed), nil); err == nil && changed != log {
				t.Fatalf("line %d changed to %q is not found out in\n%s", i+1, with, log)
			}
		}
	}
}

// TestFull has no room for a while: what is not written is refused and counted, and what
// is written stays a chain, also where nothing can be taken back.
func TestFull(t *testing.T) {
	for _, appendOnly := range []bool{false, true} {
		t.Run(fmt.Sprintf("appendOnly=%t", appendOnly), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			l := open(t, path)
			if appendOnly {
				setAppendOnly(t, path)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			refused := 0
			withFileLimit(t, uint64(info.Size())+1000, func() {
				for i := range 20 {
					if err := l.Commit(audit.Event{Event: "tried", Process: fmt.Sprint(i)}); err != nil {
						refused++
					}
				}
			})
			if refused == 0 {
				t.Fatal("there was room")
			}
			commit(t, l, audit.Event{Event: "room again"})
			commit(t, l, audit.Event{Event: "more"})
			l.Close()
			whole(t, path)
			text, err := os.ReadFile(path)
			if err != nil || !strings.Contains(string(text), fmt.Sprintf(`"event":"room again","lost":%d`, refused)) {
				t.Errorf("%d were refused: %s, %v", refused, text, err)
			}
		})
	}
}

// TestTruncated has somebody else empty the file, as some programs rotate logs, and no
// room a little later.
func TestTruncated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := open(t, path)
	for range 20 {
		commit(t, l, audit.Event{Event: "before"})
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	commit(t, l, audit.Event{Event: "after"})
	withFileLimit(t, 300, func() {
		if l.Commit(audit.Event{Event: "no room", Reason: strings.Repeat("x", 300)}) == nil {
			t.Error("there was room")
		}
	})
	commit(t, l, audit.Event{Event: "room again"})
	l.Close()
	if n := whole(t, path).Lines; n != 3 {
		t.Errorf("%d lines, want 3", n)
	}
}

// TestDeleted takes the name of the file away.
func TestDeleted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := open(t, path)
	commit(t, l, audit.Event{Event: "one"})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	commit(t, l, audit.Event{Event: "two"})
	l.Close()
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), `"event":"two"`) {
		t.Errorf("the log is %s, %v", text, err)
	}
	if whole(t, path).First == audit.Beginning {
		t.Error("nothing tells of what was before")
	}
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
	if err := errors.Join(os.WriteFile(dir+"/other", []byte("precious\n"), 0o600), syscall.Mkfifo(dir+"/fifo", 0o600)); err != nil {
		t.Fatal(err)
	}
	used := open(t, dir+"/used")
	commit(t, used, audit.Event{Event: "x"})
	for path, want := range map[string]string{
		dir + "/link": "too many levels of symbolic links", dir + "/readable": "chmod 600", dir: "is a directory",
		dir + "/other": "there is no event in it", dir + "/fifo": "not a regular file", dir + "/used": "another server writes to it", dir + "/no/such": "no such file", "/dev/null": "not a regular file",
	} {
		if l, err := audit.Open(path, true, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
			if l != nil {
				l.Close()
			}
		}
	}
	for _, file := range []string{target, dir + "/other"} {
		if content, _ := os.ReadFile(file); string(content) != "precious\n" {
			t.Errorf("%s is %q", file, content)
		}
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
	commit(t, l, audit.Event{Event: "start", Argv: []string{long, long}, Reason: long, Cwd: long, Sandbox: long})
	commit(t, l, audit.Event{Event: "start", Argv: make([]string, 1<<20)})
	l.Close()
	info, err := os.Stat(path)
	if err != nil || info.Size() > 300<<10 {
		t.Errorf("the log has %d bytes, %v", info.Size(), err)
	}
	whole(t, path)
}
