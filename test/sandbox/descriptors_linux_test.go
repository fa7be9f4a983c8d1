package sandbox_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// sendDescriptors sends as many descriptors as it can to nobody, and keeps them on their way
// until its input ends.
func sendDescriptors() {
	rights := make([]int, 253) // the most that one message holds
	for sent := 0; ; {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		for err == nil {
			if err = unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(rights...), nil, 0); err == nil {
				sent += len(rights)
			}
		}
		if !errors.Is(err, unix.EAGAIN) {
			fmt.Println("sent", sent, err)
			break
		}
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// becomeSoft executes a program as a user with limits on descriptors.
func becomeSoft(soft, hard, id string, argv []string) error {
	runtime.LockOSThread()
	var limit unix.Rlimit
	limit.Cur, _ = strconv.ParseUint(soft, 10, 64)
	limit.Max, _ = strconv.ParseUint(hard, 10, 64)
	uid, _ := strconv.Atoi(id)
	if err := errors.Join(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit),
		unix.Setgroups(nil), unix.Setresgid(uid, uid, uid), unix.Setresuid(uid, uid, uid)); err != nil {
		return err
	}
	return unix.Exec(argv[0], argv, os.Environ())
}

// withDescriptors starts a server with few descriptors, as a user of its own, whose descriptors the
// kernel counts.
func withDescriptors(t *testing.T, uid int, means string) *machine {
	t.Helper()
	m := prepareMachine(t, user{"ordinary", uid}, means)
	if means == "bubblewrap" && m.bubblewrap == "" {
		testkit.Need(t, "bwrap")
	}
	m.inside = &syscall.SysProcAttr{}
	m.through = []string{"soft", "700", "4000", strconv.Itoa(m.user.uid)}
	m.start()
	if m.conn.Info.Sandbox.Means != means {
		t.Skip(m.conn.Info.Sandbox.Reason)
	}
	return m
}

// TestDescriptorsOnTheirWay runs a command that sends as many descriptors as the kernel lets a
// user have on their way. The user's other commands start, and files open in sandboxes.
func TestDescriptorsOnTheirWay(t *testing.T) {
	testkit.System(t, testkit.Root)
	for i, means := range []string{"userNamespace", "bubblewrap", "landlock"} {
		t.Run(means, func(t *testing.T) {
			t.Parallel()
			m := withDescriptors(t, 61330+i, means)
			sandbox := m.policy("restricted", special("root", "read"))
			p, id, err := m.begin(command{argv: []string{m.program, "send"}, sandbox: sandbox})
			m.must(err)
			m.awaitOutput(p, "too many references")
			m.says(sandbox, [2]string{"ulimit -n", "700\n"}, [2]string{"ulimit -Hn", "2000\n"}, [2]string{"ulimit -n 2000", "done"})
			m.says(nil, [2]string{"ulimit -n", "700\n"}, [2]string{"ulimit -Hn", "4000\n"})
			if means != "landlock" { // which does not show this program to a helper with such a policy
				file := uri(filepath.Join(m.outside, "file"))
				some := m.policy("restricted", special("minimal", "read"), at(m.outside, "read"))
				m.must(m.call("fs/readFile", object{"path": file, "sandbox": some}, nil))
				m.must(m.call("fs/open", object{"handleId": "h", "path": file, "mode": "read", "sandbox": some}, nil))
				m.must(m.call("fs/close", object{"handleId": "h"}, nil))
			}
			if got := m.written(p); !strings.HasPrefix(got, "sent 2") {
				t.Errorf("the command has %s", got)
			}
			m.must(m.call("process/terminate", object{"processId": id}, nil))
			m.await(p)
		})
	}
}

// TestDescriptorsBeyondTheLimit has more descriptors on their way than any program of the user may
// send. Files open in sandboxes all the same.
func TestDescriptorsBeyondTheLimit(t *testing.T) {
	testkit.System(t, testkit.Root)
	for i, means := range []string{"userNamespace", "bubblewrap"} {
		t.Run(means, func(t *testing.T) {
			t.Parallel()
			m := withDescriptors(t, 61340+i, means)
			m.write(filepath.Join(m.outside, "file"), "content")
			p, id, err := m.begin(command{argv: []string{"/bin/sh", "-c", "ulimit -n 4000; exec " + m.program + " send"}})
			m.must(err)
			m.awaitOutput(p, "too many references")
			file := uri(filepath.Join(m.outside, "file"))
			some := m.policy("restricted", special("minimal", "read"), at(m.outside, "read"))
			var read struct{ DataBase64 []byte }
			m.must(m.call("fs/readFile", object{"path": file, "sandbox": some}, &read))
			m.must(m.call("fs/open", object{"handleId": "h", "path": file, "mode": "read", "sandbox": some}, nil))
			m.must(m.call("fs/close", object{"handleId": "h"}, nil))
			if string(read.DataBase64) != "content" {
				t.Errorf("read %q", read.DataBase64)
			}
			m.must(m.call("process/terminate", object{"processId": id}, nil))
			m.await(p)
		})
	}
}
