package sandbox_test

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// takeInotify opens as many inotify instances as it can, and keeps them until its input
// ends.
func takeInotify() {
	n := 0
	for {
		if _, err := unix.InotifyInit1(unix.IN_CLOEXEC); err != nil {
			fmt.Println(n, "instances,", err)
			break
		}
		n++
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// TestInotifyTaken runs a command that opens as many inotify instances as it can. The
// server can still watch files.
func TestInotifyTaken(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		t.Fatal(err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if limit > 900 {
		t.Skipf("a user may have %d instances, more than a process has descriptors", limit)
	}
	everyUser(t, func(t *testing.T, m *machine) {
		m.start()
		if m.conn.Info.Sandbox.Means != "userNamespace" {
			t.Skip("there are no user namespaces")
		}
		p, id, err := m.begin(command{argv: []string{m.program, "watch"}, sandbox: m.workspaceWrite()})
		m.must(err)
		m.awaitOutput(p, "too many open files")
		if n, _ := strconv.Atoi(strings.Fields(m.written(p))[0]); n > limit/2 {
			t.Errorf("the command has %d instances of %d", n, limit)
		}
		m.wants(0, "", "fs/watch", object{"watchId": "w", "path": uri(m.ws)})
		m.must(m.call("fs/unwatch", object{"watchId": "w"}, nil))
		m.must(m.call("process/terminate", object{"processId": id}, nil))
		m.await(p)
	})
}
