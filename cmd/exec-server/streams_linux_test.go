package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// eachUser runs a test as root and as an ordinary user, each with a directory of its own
// and a shell there that finds the program.
func eachUser(t *testing.T, test func(t *testing.T, dir string, shell func(script string) *exec.Cmd)) {
	inSandbox(t, "--read", "/")
	users := map[string]uint32{"self": uint32(os.Geteuid())}
	if os.Geteuid() == 0 {
		users = map[string]uint32{"root": 0, "ordinary": 61234}
	}
	for name, id := range users {
		t.Run(name, func(t *testing.T) {
			base, err := os.MkdirTemp("/var/tmp", "exec-server-test-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(base) })
			dir, program := filepath.Join(base, "dir"), filepath.Join(base, "exec-server")
			testkit.CopyProgram(t, program)
			for _, step := range []error{os.Chmod(base, 0o755), os.Mkdir(dir, 0o755), os.Chown(dir, int(id), int(id))} {
				if step != nil {
					t.Fatal(step)
				}
			}
			test(t, dir, func(script string) *exec.Cmd {
				command := exec.Command("/bin/sh", "-c", script)
				command.Dir = dir
				command.Env = []string{"PATH=" + base + ":/usr/bin:/bin", "LC_ALL=C", "HOME=" + dir}
				if os.Geteuid() == 0 {
					command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
				}
				return command
			})
		})
	}
}

// TestSandboxRedirected checks that a command can use redirected files as the shell
// opened them, and no more.
func TestSandboxRedirected(t *testing.T) {
	t.Parallel()
	const in = "exec-server sandbox --read / -- "
	eachUser(t, func(t *testing.T, dir string, shell func(string) *exec.Cmd) {
		for _, test := range []struct {
			name, script string
			stdout       string // a part of it, or of standard error
			code         int
			file         string // its content afterwards; at first "one\ntwo\n"
		}{
			{"read", in + "cat <file", "one\ntwo\n", 0, "one\ntwo\n"},
			{"write what is read", in + "sh -c 'echo bad >/proc/self/fd/0' <file", "", 0, "one\ntwo\n"},
			{"append to what is read", in + "sh -c 'echo bad >>/dev/stdin' <file", "", 0, "one\ntwo\n"},
			{"mode of what is read", in + "chmod 777 /proc/self/fd/0 <file; stat -c %a file", "644", 0, "one\ntwo\n"},
			{"truncate what is read", in + "truncate -s 0 /proc/self/fd/0 <file", "", 1, "one\ntwo\n"},
			{"write to a FIFO that is read", "mkfifo fifo; exec 9<>fifo; " + in + "sh -c 'echo bad >/proc/self/fd/0' <fifo; timeout .3 cat <&9", "", 124, "one\ntwo\n"},
			{"write", in + "echo new >file", "", 0, "new\n"},
			{"append", in + "echo new >>file", "", 0, "one\ntwo\nnew\n"},
			{"append both", in + "sh -c 'echo a; echo b >&2; echo c' >>file 2>&1", "", 0, "one\ntwo\na\nb\nc\n"},
			{"append to one file twice", in + "sh -c 'echo a; echo b >&2; echo c' >>file 2>>file", "", 0, "one\ntwo\na\nb\nc\n"},
			{"truncate a log", in + "sh -c ': >/proc/self/fd/1; echo new' >>file", "", 0, "one\ntwo\nnew\n"},
			{"truncate a log of errors", in + "sh -c ': >/proc/self/fd/2; echo new >&2' 2>>file", "", 0, "one\ntwo\nnew\n"},
			{"read what is written", in + "sh -c 'timeout .3 cat /proc/self/fd/1 >&2' >>file", "", 124, "one\ntwo\n"},
			{"mode of a log", in + "chmod 777 /proc/self/fd/1 >>file; stat -c %a file", "644", 0, "one\ntwo\n"},
			{"after it", "{ " + in + "echo new; echo more; } >file", "", 0, "new\nmore\n"},
			{"before and after it", "{ read x; " + in + "true; cat; } <file", "two\n", 0, "one\ntwo\n"},
			{"the rest", "{ read x; " + in + "cat; cat; } <file", "two\n", 0, "one\ntwo\n"},
			{"a directory", in + "ls /proc/self/fd/0/ <.", "standard input is a directory", 125, "one\ntwo\n"},
			{"a directory as output", "exec 3<.; " + in + "true >&3", "standard output is a directory", 125, "one\ntwo\n"},
			{"nobody reads", in + "yes 2>&1 | head -1", "y\n", 0, "one\ntwo\n"},
			{"a slow reader", in + "head -c 150000 /dev/zero | { sleep .5; wc -c; }", "150000\n", 0, "one\ntwo\n"},
			{"pipes", "echo in | " + in + "sh -c 'cat; echo err >&2' 2>&1 | cat", "in\nerr\n", 0, "one\ntwo\n"},
			{"null", in + "sh -c 'cat; echo x' </dev/null >/dev/null 2>/dev/null", "", 0, "one\ntwo\n"},
			{"full", in + "sh -c 'echo x 2>&2' >/dev/full", "I/O error", 1, "one\ntwo\n"},
			{"closed", in + "sh -c 'echo out; cat' <&-", "out\n", 0, "one\ntwo\n"},
			{"not started", in + "none <file; cat file", "two\n", 0, "one\ntwo\n"},
		} {
			t.Run(test.name, func(t *testing.T) {
				file := filepath.Join(dir, "file")
				command := shell("umask 022; printf 'one\\ntwo\\n' >file; " + test.script)
				output, _ := command.CombinedOutput()
				if code := command.ProcessState.ExitCode(); code != test.code || !strings.Contains(string(output), test.stdout) {
					t.Errorf("exit code %d, want %d; %q", code, test.code, output)
				}
				if text, err := os.ReadFile(file); string(text) != test.file {
					t.Errorf("the file holds %q, %v, want %q", text, err, test.file)
				}
				if strings.Contains(string(output), "bad") {
					t.Errorf("it has written what it only reads: %q", output)
				}
			})
		}
	})
}

// TestSandboxSockets checks that a command gets a pipe instead of a socket with which it
// could reach others than the peer: datagrams can be sent to any name, and a socket of the
// machine's network can be connected elsewhere.
func TestSandboxSockets(t *testing.T) {
	t.Parallel()
	eachUser(t, func(t *testing.T, _ string, shell func(string) *exec.Cmd) {
		for _, test := range []struct {
			name         string
			domain, kind int
			pair         bool
			want         string
		}{
			{"stream with a peer", unix.AF_UNIX, unix.SOCK_STREAM, true, "socket"},
			{"packets with a peer", unix.AF_UNIX, unix.SOCK_SEQPACKET, true, "socket"},
			{"stream without a peer", unix.AF_UNIX, unix.SOCK_STREAM, false, "pipe"},
			{"datagrams", unix.AF_UNIX, unix.SOCK_DGRAM, true, "pipe"},
			{"TCP", unix.AF_INET, unix.SOCK_STREAM, false, "pipe"},
			{"UDP", unix.AF_INET, unix.SOCK_DGRAM, false, "pipe"},
		} {
			fds := []int{-1, -1}
			var err error
			if test.pair {
				var pair [2]int
				pair, err = unix.Socketpair(test.domain, test.kind|unix.SOCK_CLOEXEC, 0)
				fds = pair[:]
			} else {
				fds[0], err = unix.Socket(test.domain, test.kind|unix.SOCK_CLOEXEC, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			stdin := os.NewFile(uintptr(fds[0]), test.name)
			command := shell("exec-server sandbox --read / --no-network -- " +
				"sh -c 'test -S /dev/stdin && echo socket; test -p /dev/stdin && echo pipe; true'")
			command.Stdin = stdin
			text, err := command.Output()
			if string(text) != test.want+"\n" {
				t.Errorf("%s: %v, %q, want %s", test.name, err, text, test.want)
			}
			_ = stdin.Close()
			if test.pair {
				_ = unix.Close(fds[1])
			}
		}
	})
}
