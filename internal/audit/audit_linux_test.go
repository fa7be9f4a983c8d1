package audit_test

import (
	"bytes"
	"encoding/json"
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

// events returns the events of a log, and the number of its lines that are not one.
func events(t *testing.T, path string) (of []audit.Event, torn int) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(content) {
		var e audit.Event
		if json.Unmarshal(line, &e) != nil || e.Event == "" {
			torn++
			continue
		}
		of = append(of, e)
	}
	return of, torn
}

// whole expects a log to have these events and nothing else.
func whole(t *testing.T, path string, want ...string) {
	t.Helper()
	of, torn := events(t, path)
	var names []string
	for _, e := range of {
		names = append(names, e.Event)
	}
	if fmt.Sprint(names) != fmt.Sprint(want) || torn > 0 {
		t.Errorf("%s has %q and %d other lines, want %q", path, names, torn, want)
	}
}

func commit(t *testing.T, l *audit.Log, e audit.Event) {
	t.Helper()
	if err := l.Commit(e); err != nil {
		t.Fatal(err)
	}
}

// TestLines writes from many goroutines, and goes on after a restart.
func TestLines(t *testing.T) {
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
	if of, torn := events(t, path); len(of) != 404 || torn > 0 {
		t.Errorf("%d events and %d other lines, want 404 and 0", len(of), torn)
	}
}

// TestReopen renames the file, as logrotate does.
func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := open(t, path)
	commit(t, l, audit.Event{Event: "one"})
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	commit(t, l, audit.Event{Event: "two"})
	for range 2 { // the second time nothing was renamed
		if err := l.Reopen(); err != nil {
			t.Fatal(err)
		}
	}
	commit(t, l, audit.Event{Event: "three"})
	if err := os.Symlink("log.1", path+".link"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".link", path); err != nil { // the new file has no name now
		t.Fatal(err)
	}
	if err := l.Reopen(); err == nil {
		t.Error("a link was opened")
	}
	commit(t, l, audit.Event{Event: "still in the file before the link"})
	l.Close()
	if err := l.Reopen(); err == nil {
		t.Error("reopened after the end")
	}
	whole(t, path+".1", "opened", "one", "two")
	if info, err := os.Stat(path + ".1"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode is %v, %v", info.Mode(), err)
	}
}

// TestTwoLogs has two servers write one file, as while one of them drains.
func TestTwoLogs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	logs := []*audit.Log{open(t, path), open(t, path)}
	var wg sync.WaitGroup
	for _, l := range logs {
		for range 4 {
			wg.Go(func() {
				for range 50 {
					if err := l.Commit(audit.Event{Event: "start", Cwd: strings.Repeat("x", 1000)}); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if of, torn := events(t, path); len(of) != 402 || torn > 0 {
		t.Errorf("%d events and %d other lines, want 402 and 0", len(of), torn)
	}
}

// TestTorn cuts the last line short at every byte, as a crash can, and adds what a crash of
// the machine can leave. The next event has a line of its own, and nothing before changes.
func TestTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := open(t, path)
	commit(t, l, audit.Event{Event: "one"})
	l.Close()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var left [][]byte
	for cut := range len(content) + 1 {
		left = append(left, content[:cut])
	}
	for _, rest := range []string{"\x00\x00\x00", "\n", "x\n", "{}\n", "x\n\x00", `{"time":`} {
		left = append(left, append(bytes.Clone(content), rest...))
	}
	for _, text := range left {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		l := open(t, path)
		commit(t, l, audit.Event{Event: "two"})
		l.Close()
		after, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(after, text) {
			t.Fatalf("%q has become %q, %v", text, after, err)
		}
		of, _ := events(t, path)
		if len(of) < 3 || of[len(of)-3].Event != "opened" || of[len(of)-2].Event != "two" || of[len(of)-1].Event != "closed" {
			t.Errorf("after %q: %v", text, of)
		}
	}
}

// TestFull has no room for a while. An event that is refused is counted, and one that is
// written has a line of its own.
func TestFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := open(t, path)
	commit(t, l, audit.Event{Event: "room"})
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
		if l.Ready() == nil {
			t.Error("the log is ready without room")
		}
	})
	if refused == 0 {
		t.Fatal("there was room")
	}
	if err := l.Ready(); err != nil {
		t.Errorf("not ready with room: %v", err)
	}
	commit(t, l, audit.Event{Event: "room again"})
	l.Close()
	of, torn := events(t, path)
	if torn != 1 || len(of) != 22-refused+3 {
		t.Errorf("%d were refused: %v and %d other lines", refused, of, torn)
	}
	checked := of[len(of)-3]
	if lost := uint64(refused) + 1; checked.Event != "checked" || checked.Lost != lost || l.Lost() != lost {
		t.Errorf("%d were lost: %v, Lost is %d", lost, checked, l.Lost())
	}
}

// TestTruncated truncates the file, as some programs do to rotate logs.
func TestTruncated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := open(t, path)
	commit(t, l, audit.Event{Event: "before"})
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	commit(t, l, audit.Event{Event: "after"})
	l.Close()
	whole(t, path, "after", "closed")
}

// TestOpenRefuses has files that are not the server's own in the place of the log.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := errors.Join(
		os.WriteFile(target, []byte("precious\n"), 0o600), os.Symlink(target, dir+"/link"), os.Symlink(dir+"/none", dir+"/dangling"),
		os.WriteFile(dir+"/readable", nil, 0o644), syscall.Mkfifo(dir+"/fifo", 0o600),
	); err != nil {
		t.Fatal(err)
	}
	refused := map[string]string{
		dir + "/link": "it is a symbolic link", dir + "/dangling": "it is a symbolic link", dir + "/readable": "chmod 600", dir: "is a directory",
		dir + "/fifo": "not a regular file", dir + "/no/such": "no such file", "/dev/null": "not a regular file",
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.WriteFile(dir+"/other", nil, 0o600), os.Chown(dir+"/other", 1, 1)); err != nil {
			t.Fatal(err)
		}
		refused[dir+"/other"] = "it belongs to the user 1"
	}
	for path, want := range refused {
		if l, err := audit.Open(path, true, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
			if l != nil {
				l.Close()
			}
		}
	}
	if content, _ := os.ReadFile(target); string(content) != "precious\n" {
		t.Errorf("%s is %q", target, content)
	}
	if _, err := os.Lstat(dir + "/none"); err == nil {
		t.Error("a file was made through a link")
	}
}

// TestBounds has clients that are not admitted try to fill the disk, and a client with long
// texts.
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
	if _, torn := events(t, path); torn > 0 {
		t.Errorf("%d lines are not events", torn)
	}
}
