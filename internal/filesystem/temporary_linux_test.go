package filesystem_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/filesystem"
)

// These variables make this program write a file and exit, or write it and hang before
// the file has its name.
const (
	writesFile = "TEST_WRITES_FILE"
	hangsIn    = "TEST_HANGS_IN_WRITE"
)

func init() {
	write := func(path string) {
		if err := filesystem.WriteFile(context.Background(), path, []byte("new"), filesystem.WriteOptions{}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if path := os.Getenv(writesFile); path != "" {
		write(path)
	}
	if path := os.Getenv(hangsIn); path != "" {
		filesystem.HangInRename(func() { fmt.Println("hangs") })
		write(path)
	}
}

// program returns a command that runs this program with a variable.
func program(name, value string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), name+"="+value)
	return cmd
}

// TestStaleTemporaryFilesAreRemoved kills a program while it replaces a file, which leaves a
// temporary file. The next program that makes a file in the directory removes that file, but
// neither the file of a live program nor anything else.
func TestStaleTemporaryFilesAreRemoved(t *testing.T) {
	file := runningProgram(t) // which is replaced, because it cannot be written
	dir := filepath.Dir(file)
	before := stat(t, file)
	other := dir + "/other"
	temporaries := func() (names []string) {
		t.Helper()
		paths, err := filepath.Glob(dir + "/.exec-server-*.tmp")
		ok(t, "glob", err)
		return paths
	}
	writeOther := func() {
		t.Helper()
		_ = os.Remove(other) // the first time it is not there
		out, err := program(writesFile, other).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	hanging := program(hangsIn, file)
	stdout, err := hanging.StdoutPipe()
	ok(t, "pipe", err)
	ok(t, "start", hanging.Start())
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "hangs\n" {
		t.Fatalf("%q, %v", line, err)
	}
	writeOther()
	left := temporaries()
	if len(left) != 1 || content(t, left[0]) != "new" {
		t.Fatalf("a program that lives has %q", left)
	}
	ok(t, "kill", hanging.Process.Kill())
	_ = hanging.Wait() // killed above
	if now := temporaries(); len(now) != 1 || now[0] != left[0] {
		t.Fatalf("a program that was killed left %q", now)
	}

	uid := strings.Split(filepath.Base(left[0]), "-")[2]
	name := func(uid, random string) string { return ".exec-server-" + uid + "-" + random + ".tmp" }
	keeps := []string{
		name(uid, "0123456789abcde"), name(uid, "0123456789abcdeg"), name("4711", "0123456789abcdef"),
		name(uid, "0123456789abcdef") + ".bak", "x" + name(uid, "0123456789abcdef"), ".exec-server-0123456789abcdef.tmp",
	}
	for _, name := range keeps {
		put(t, dir+"/"+name, "precious")
	}
	mkdir(t, dir+"/"+name(uid, "000000000000000d"))
	symlink(t, "file", dir+"/"+name(uid, "000000000000000e"))
	mkfifo(t, dir+"/"+name(uid, "000000000000000f"))
	keeps = append(keeps, name(uid, "000000000000000d"), name(uid, "000000000000000e"), name(uid, "000000000000000f"))
	locked, err := os.Open(put(t, dir+"/"+name(uid, "0000000000000010"), "in the making"))
	ok(t, "open", err)
	defer locked.Close()
	ok(t, "lock", unix.Flock(int(locked.Fd()), unix.LOCK_EX))
	keeps = append(keeps, name(uid, "0000000000000010"))

	writeOther()
	if _, err := os.Lstat(left[0]); !os.IsNotExist(err) {
		t.Errorf("what was left behind is still there: %v", err)
	}
	for _, name := range keeps {
		if _, err := os.Lstat(dir + "/" + name); err != nil {
			t.Error(err)
		}
	}
	if after := stat(t, file); after.Ino != before.Ino || after.Size != before.Size {
		t.Errorf("the file is %+v, was %+v", after, before)
	}
}

// TestPublishedFilesAreNotLocked checks that a published file is not locked.
func TestPublishedFilesAreNotLocked(t *testing.T) {
	for _, path := range []string{put(t, t.TempDir()+"/old", ""), t.TempDir() + "/new"} {
		ok(t, "write", filesystem.WriteFile(context.Background(), path, []byte("x"), filesystem.WriteOptions{}))
		f, err := os.Open(path)
		ok(t, "open", err)
		ok(t, "lock", unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
		f.Close()
	}
}
