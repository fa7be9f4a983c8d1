package server_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
	"execserver/server"
)

// TestSystemStartsOnADeadFileSystem starts programs whose files, interpreters and
// directories are on a file system that does not answer. Nothing else waits.
func TestSystemStartsOnADeadFileSystem(t *testing.T) {
	t.Parallel() // it mostly waits
	if !testkit.InMountNamespace(t) {
		return
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // as where there are two processors
	srv := server.New(nil)
	dead, revive := mountDead(t)
	script := t.TempDir() + "/script"
	if err := os.WriteFile(script, []byte("#!"+dead+"/interpreter\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	p := connectFiles(t, srv)
	started := 0
	start := func(dir string, argv ...string) <-chan answer {
		started++
		return p.send("process/start", fileParams{
			"processId": fmt.Sprint("p", started), "argv": argv, "cwd": dir, "env": fileParams{}, "tty": started%2 == 0,
		})
	}
	var stuck []<-chan answer
	for range 4 {
		stuck = append(stuck, start("/", script), start("/", dead+"/program"), start(dead, "/bin/true"))
	}
	testkit.WaitFor(t, testkit.Patience, func() error { // until each of them waits
		stacks := testkit.Stacks()
		waiting := strings.Count(stacks, "process.prepare(") + strings.Count(stacks, "process.prefault(")
		if waiting != len(stuck) {
			return fmt.Errorf("%d of %d starts wait", waiting, len(stuck))
		}
		return nil
	})
	runtime.GC() // waits for what keeps a processor
	for range 10 {
		p.call("fs/getMetadata", fileParams{"path": "/"}, nil)
		if err := p.take(start("/", "/bin/true"), nil); err != nil {
			t.Error(err)
		}
	}
	unanswered(t, "start", stuck)
	revive()
	for i, arrives := range stuck {
		if err := p.take(arrives, nil); err == nil {
			t.Errorf("start %d on a dead file system succeeded", i)
		}
	}
	p.close()
	testkit.Shutdown(t, srv)
}

// TestStartsDuringALease starts a program on which somebody has a lease for writing, whose
// end the kernel awaits when the file is opened. Nothing else waits.
func TestStartsDuringALease(t *testing.T) {
	script := t.TempDir() + "/script"
	testkit.WriteProgram(t, script, []byte("#!/bin/sh\nexit 3\n"))
	file, err := os.Open(script) // not to write: the kernel executes no file that somebody may write
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("no lease on this file system: %v", err)
	}
	p := connectFiles(t, newFileServer(t, nil))
	start := func(id string, argv ...string) <-chan answer {
		return p.send("process/start", fileParams{"processId": id, "argv": argv, "cwd": "/", "env": fileParams{}, "tty": false})
	}
	leased := start("leased", script)
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !strings.Contains(testkit.Stacks(), "process.prefault(") {
			return errors.New("the start does not wait where it holds up nobody")
		}
		return nil
	})
	for i := range 10 {
		if err := p.take(start(fmt.Sprint(i), "/bin/true"), nil); err != nil {
			t.Error(err)
		}
	}
	unanswered(t, "start", []<-chan answer{leased})
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_UNLCK); err != nil {
		t.Fatal(err)
	}
	if err := p.take(leased, nil); err != nil {
		t.Error(err)
	}
}
