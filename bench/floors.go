//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The floors do the same work with no more than any server must do.

// outputFloor reads the output of a command from a pipe or a terminal, and returns how much
// it is.
func outputFloor(m *sample, tty bool, argv ...string) (n int64) {
	cmd := exec.CommandContext(m.ctx, argv[0], argv[1:]...)
	var out io.ReadCloser
	var err error
	if tty {
		out, err = startTerminal(cmd)
	} else if out, err = cmd.StdoutPipe(); err == nil {
		err = cmd.Start()
	}
	if !m.check(err) {
		return 0
	}
	defer out.Close()
	// io.Copy would splice, and copy nothing.
	for buf := make([]byte, 64<<10); err == nil; {
		var k int
		k, err = out.Read(buf)
		n += int64(k)
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EIO) { // EIO ends a terminal
		m.check(err)
	}
	m.check(cmd.Wait())
	return n
}

// startTerminal starts a command on a terminal of its own.
func startTerminal(cmd *exec.Cmd) (*os.File, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		var slave *os.File
		if slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0); err == nil {
			cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			err = errors.Join(cmd.Start(), slave.Close())
		}
	}
	if err != nil {
		_ = master.Close()
		return nil, err
	}
	return master, nil
}

func keystrokeFloor(m *sample) {
	ctx, cancel := context.WithCancel(m.ctx)
	cmd := exec.CommandContext(ctx, rawCat[0], rawCat[1:]...)
	master, err := startTerminal(cmd)
	defer cancel()
	if !m.check(err) {
		return
	}
	defer master.Close()
	latencies(m, "keystroke to echo", keys, keyPause, typistAt(m, master))
	cancel()
	_ = cmd.Wait() // it was killed
}

// typistAt waits for the first output of the program that echoes. It returns a function that
// types a key and waits for its echo.
func typistAt(m *sample, terminal io.ReadWriter) (key func()) {
	buf := make([]byte, 4096)
	echo := func() {
		_, err := terminal.Read(buf)
		m.check(err)
	}
	echo()
	return func() {
		if _, err := terminal.Write([]byte("x")); m.check(err) {
			echo()
		}
	}
}

func spawn() error {
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	_, err := cmd.Output()
	return err
}

func startFloor(m *sample) {
	latencies(m, "start to closed", startsAlone, 0, func() { m.check(spawn()) })
}

func startsFloor(m *sample) {
	begin := time.Now()
	var all sync.WaitGroup
	errs := make([]error, flying)
	for i := range errs {
		all.Go(func() {
			for n := i; n < startsFlying && errs[i] == nil; n += flying {
				errs[i] = spawn()
			}
		})
	}
	all.Wait()
	m.check(errors.Join(errs...))
	m.add("starts, 64 in flight", "/s", startsFlying/time.Since(begin).Seconds())
}

func readFileFloor(m *sample) {
	withFile(m, fileBytes, func(path string) {
		rate(m, "`fs/readFile` of 8 MiB", func() {
			_, err := os.ReadFile(path)
			m.check(err)
		})
	})
}

func writeFileFloor(m *sample) {
	data := make([]byte, fileBytes)
	withFile(m, 0, func(path string) {
		rate(m, "`fs/writeFile` of 8 MiB", func() {
			if m.check(os.WriteFile(path+".new", data, 0o644)) {
				m.check(os.Rename(path+".new", path))
			}
		})
	})
}
