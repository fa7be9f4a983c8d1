package sandbox_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"execserver/protocol"
)

// rounds returns the number of writes that race with a link. EXEC_SERVER_TEST_ROUNDS
// raises it.
func rounds(t *testing.T) int {
	n, err := strconv.Atoi(os.Getenv("EXEC_SERVER_TEST_ROUNDS"))
	if err != nil {
		return 40
	}
	t.Logf("%d rounds", n)
	return n
}

// TestFlippedLinks writes files through a link that a confined command points inside and
// outside in turn (row 39). The server makes the files inside or not at all.
func TestFlippedLinks(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		before := m.snapshot(m.outside) + m.snapshot(filepath.Join(m.ws, ".git"))
		// The name is always one or the other: what is renamed takes its place.
		script := "mkdir -p target; ln -s target in; ln -s " + m.outside + " out; ln -s .git git; echo ready; " +
			"while :; do cp -P in i; mv -T i flip; cp -P out o; mv -T o flip; cp -P git g; mv -T g flip; done"
		p, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", script}, sandbox: m.workspaceWrite()})
		m.must(err)
		m.awaitOutput(p, "ready")
		eventually(t, "the link does not appear", func() bool {
			_, err := os.Lstat(filepath.Join(m.ws, "flip"))
			return err == nil
		})
		var inside, refused, missing atomic.Int64
		todo := make(chan struct{})
		var writers sync.WaitGroup
		for i := range 32 { // as many as the server confines at a time, of files of their own
			path := uri(filepath.Join(m.ws, "flip", strconv.Itoa(i)))
			writers.Go(func() {
				for range todo {
					err := m.call("fs/writeFile", object{"path": path, "dataBase64": "aGVsbG8=", "sandbox": m.workspaceWrite()}, nil)
					failed, _ := errors.AsType[*protocol.Error](err)
					switch {
					case failed == nil:
						inside.Add(1)
					case strings.HasSuffix(failed.Message, "read-only file system (os error 30)") && failed.Code == -32603:
						refused.Add(1)
					case failed.Code == -32004:
						missing.Add(1)
					default:
						t.Error(failed)
					}
				}
			})
		}
		n := rounds(t)
		for range n {
			todo <- struct{}{}
		}
		close(todo)
		writers.Wait()
		m.must(m.call("process/terminate", object{"processId": id}, nil))
		m.await(p)
		t.Logf("%d inside, %d refused, %d where there was nothing", inside.Load(), refused.Load(), missing.Load())
		if n >= 1000 && (inside.Load() == 0 || refused.Load() == 0) {
			t.Error("the link has not led both ways")
		}
		if after := m.snapshot(m.outside) + m.snapshot(filepath.Join(m.ws, ".git")); after != before {
			t.Errorf("there is now\n%s\nin place of\n%s", after, before)
		}
		m.clean(m.ws)
	})
}

// TestMovedDirectories starts commands while another one moves directories, each with a
// file that a pattern denies, to places that the server has already searched.
func TestMovedDirectories(t *testing.T) {
	everyUser(t, func(t *testing.T, m *machine) {
		m.start()
		for _, dir := range []string{"a/moved", "z"} {
			m.must(os.MkdirAll(filepath.Join(m.ws, dir), 0o755))
		}
		for i := range 100 {
			m.must(os.MkdirAll(filepath.Join(m.ws, "m", strconv.Itoa(i)), 0o755))
		}
		m.must(os.WriteFile(filepath.Join(m.ws, "a/moved/x.env"), []byte("secret"), 0o644))
		m.own(m.ws)
		sandbox := m.workspaceWrite(glob("**/*.env"))
		var moving sync.WaitGroup
		var stop atomic.Bool
		moving.Go(func() {
			from, to := filepath.Join(m.ws, "a/moved"), filepath.Join(m.ws, "z/moved")
			for !stop.Load() {
				if err := os.Rename(from, to); err != nil {
					t.Error(err)
					return
				}
				from, to = to, from
				time.Sleep(2 * time.Millisecond) // about as long as the search is on its way
			}
		})
		shown, n := 0, rounds(t)/4
		for range n {
			p, _, err := m.begin(command{argv: []string{"/bin/sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do cat a/moved/x.env; cat z/moved/x.env; done 2>/dev/null"}, sandbox: sandbox})
			if err != nil {
				t.Fatalf("a command is not started: %v", err)
			}
			if m.await(p); strings.Contains(m.written(p), "secret") {
				shown++
			}
		}
		stop.Store(true)
		moving.Wait()
		if shown > 0 {
			t.Errorf("%d of %d commands have read a file that was denied", shown, n)
		}
	})
}
