package connect

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

var errTooFew = errors.New("not yet")

// fails runs a command that must fail with a code and one line of its own.
func fails(t *testing.T, connect *exec.Cmd, code int, words ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	connect.Stdout, connect.Stderr = &stdout, &stderr
	err := connect.Run()
	if connect.ProcessState == nil {
		t.Fatal(err)
	}
	if stdout.Len() > 0 || connect.ProcessState.ExitCode() != code {
		t.Errorf("connect ended with %v, want %d, and printed %q", err, code, stdout.String())
	}
	var lines []string
	for line := range strings.Lines(stderr.String()) {
		if strings.HasPrefix(line, "Error: ") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 1 {
		t.Fatalf("connect said %q", stderr.String())
	}
	for _, word := range words {
		if !strings.Contains(lines[0], word) {
			t.Errorf("connect said %q, which lacks %q", lines[0], word)
		}
	}
	t.Log(strings.TrimSpace(lines[0]))
}

// TestRefusals has machines on which the program cannot be put, or cannot run.
func TestRefusals(t *testing.T) {
	b := newBox(t)
	none := func(t *testing.T, name string) {
		t.Helper()
		b.vanished(t, name)
		if found := programs(b.cache(name)); len(found) != 0 {
			t.Errorf("there are %q", found)
		}
	}
	t.Run("full disk", func(t *testing.T) {
		fails(t, b.connect(t, "small"), 1, "cannot store the program", "No space left on device", "--remote-dir DIR")
		none(t, "small")
	})
	t.Run("noexec", func(t *testing.T) {
		fails(t, b.connect(t, "noexec"), 1, "does not execute programs in /mnt/noexec/.cache/exec-server", "--remote-dir DIR")
		none(t, "noexec")
	})
	t.Run("no tools", func(t *testing.T) {
		fails(t, b.connect(t, "poor"), 1, "the other machine lacks", "chmod head ls mkdir mv rm wc")
		none(t, "poor")
	})
	t.Run("another machine", func(t *testing.T) {
		connect := b.connect(t, "liar")
		fails(t, connect, 1, "there is no program for the other machine, which is Linux aarch64",
			"GOOS=linux GOARCH=arm64 CGO_ENABLED=0 go build -o "+connect.Dir+"/.local/share/exec-server/exec-server-linux-arm64 ./cmd/exec-server")
		none(t, "liar")
	})
	t.Run("program for another machine", func(t *testing.T) {
		release := t.TempDir()
		content, err := os.ReadFile(program)
		must(t, err)
		content = bytes.ReplaceAll(content, []byte("GOARCH=amd64"), []byte("GOARCH=arm64"))
		binary.LittleEndian.PutUint16(content[18:], uint16(elf.EM_AARCH64))
		must(t, os.WriteFile(filepath.Join(release, "exec-server-linux-arm64"), content, 0o755))
		fails(t, b.connect(t, "liar", "--release", release), 1, "exec-server-linux-arm64 does not run on the other machine")
		none(t, "liar")
	})
	t.Run("wrong name", func(t *testing.T) {
		release := t.TempDir()
		content, err := os.ReadFile(program)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(release, "exec-server-linux-arm64"), content, 0o755))
		connect := b.connect(t, "liar")
		connect.Env = append(connect.Env, "EXEC_SERVER_RELEASE="+release)
		fails(t, connect, 1, "exec-server-linux-arm64 is a program for linux-amd64", "make release")
		none(t, "liar")
	})
	t.Run("damaged program", func(t *testing.T) {
		hello(t, b.connect(t, "plain"))
		b.vanished(t, "plain")
		cache := b.cache("plain")
		damage(t, programs(cache)[0])
		connect := b.connect(t, "plain")
		stdin, err := connect.StdinPipe() // stays open
		must(t, err)
		defer stdin.Close()
		fails(t, connect, 255, "ended with the exit code 255 before that answered")
		must(t, os.RemoveAll(cache))
	})
	t.Run("unsafe directory", func(t *testing.T) {
		uid := b.accounts["plain"].uid
		cache := b.cache("plain")
		must(t, os.MkdirAll(cache, 0o755))
		fails(t, b.connect(t, "plain"), 1, cache+" belongs to another user")
		must(t, os.Chown(filepath.Dir(cache), uid, uid))
		must(t, os.Chown(cache, uid, uid))
		must(t, os.Chmod(cache, 0o775))
		fails(t, b.connect(t, "plain"), 1, "other users can write in "+cache)
		must(t, os.Rename(cache, cache+"-there"))
		must(t, os.Symlink(cache+"-there", cache))
		fails(t, b.connect(t, "plain"), 1, cache+" is a symbolic link")
		none(t, "plain")
		// The same after a program is there.
		must(t, os.Remove(cache))
		must(t, os.Rename(cache+"-there", cache))
		must(t, os.Chmod(cache, 0o755))
		hello(t, b.connect(t, "plain"))
		must(t, os.Chmod(cache, 0o757))
		fails(t, b.connect(t, "plain"), 1, "other users can write in "+cache)
	})
}

// damage leaves only the beginning of a program, and its size. It replaces the file, because the kernel
// lets nobody write to one that a thread of a dying process still executes.
func damage(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	info, err := os.Stat(path)
	must(t, err)
	owner := info.Sys().(*syscall.Stat_t)
	clear(content[100_000:])
	must(t, os.WriteFile(path+".new", content, 0o700))
	must(t, os.Chown(path+".new", int(owner.Uid), int(owner.Gid)))
	must(t, os.Rename(path+".new", path))
}

// TestWaysThatFail has ways that lead nowhere. They have their own words and exit codes.
func TestWaysThatFail(t *testing.T) {
	b := newBox(t)
	unknown := b.sshd.As("nobody-has-this-name")
	connect := local(t, append(append([]string{"connect", "ssh"}, unknown.Flags(b.sshd.Port())...), "127.0.0.1")...)
	fails(t, connect, 255, "the command ended before it started a server")
	fails(t, local(t, "connect", "ssh", "-F", "/dev/null", "-p", "1", "127.0.0.1"), 255, "ended before it started a server")
	fails(t, local(t, "connect", "--", "sh", "-c", "exit 9"), 9, "sh -c exit 9: the command ended")
	fails(t, local(t, "connect", "--", "sh", "-c", "echo; echo closed for '\033[1mrepairs'; exit 9"), 9, `exit status 9; it said: closed for \x1b[1mrepairs`)
	for _, name := range []string{"sh", "busybox sh"} { // loses the end of what it gets
		fails(t, local(t, "connect", "--", "sh", "-c", "dd bs=4k count=100 2>/dev/null | "+name), 1, "only a part of it arrived; try again")
	}
	fails(t, local(t, "connect", "--", "yes"), 1, "unexpected output of the shell")
	fails(t, local(t, "connect", "--", "no-such-program"), 127, "no-such-program", "install it")
}
