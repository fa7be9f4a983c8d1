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
)

// rounds is how many writes race with a link. EXEC_SERVER_TEST_ROUNDS makes it a
// number that takes longer than a test should.
func rounds(t *testing.T) int {
	n, err := strconv.Atoi(os.Getenv("EXEC_SERVER_TEST_ROUNDS"))
	if err != nil {
		return 40
	}
	t.Logf("%d rounds", n)
	return n
}

// TestFlippedLinks has files written through a link that what is confined makes
// lead in and out in turn (row 39). They come into being inside, or not at all.
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
					failed, _ := errors.AsType[*failure](err)
					switch {
					case failed == nil:
						inside.Add(1)
					case strings.HasSuffix(failed.Message, "Read-only file system (os error 30)") && failed.Code == -32603:
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
