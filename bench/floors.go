//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The floors do the same work with no more than any server must do.

func seqFloor(ctx context.Context, m *sample) error {
	return readFloor(ctx, m, seqBytes, "/usr/bin/seq", "1", strconv.Itoa(seqLast))
}

// readFloor reads the output of a command from a pipe.
func readFloor(ctx context.Context, m *sample, want int64, argv ...string) error {
	begin := time.Now()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	n, err := drain(out)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return err
	}
	return floorRate(m, begin, n, want)
}

func floorRate(m *sample, begin time.Time, n, want int64) error {
	if n != want {
		return fmt.Errorf("%d bytes came of %d", n, want)
	}
	m.add("throughput", "MB/s", higher, float64(n)/1e6/time.Since(begin).Seconds())
	return nil
}

// drain reads to the end. io.Copy would splice, and copy nothing.
func drain(r io.Reader) (n int64, err error) {
	buf := make([]byte, 64<<10)
	for {
		k, err := r.Read(buf)
		n += int64(k)
		switch {
		case err == io.EOF, errors.Is(err, syscall.EIO): // EIO ends a terminal
			return n, nil
		case err != nil:
			return n, err
		}
	}
}

// startTerminal starts a command on a terminal of its own.
func startTerminal(ctx context.Context, argv ...string) (*os.File, *exec.Cmd, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		_ = master.Close()
		return nil, nil, err
	}
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		_ = master.Close()
		return nil, nil, err
	}
	defer slave.Close()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		_ = master.Close()
		return nil, nil, err
	}
	return master, cmd, nil
}

func terminalFloor(ctx context.Context, m *sample) error {
	begin := time.Now()
	master, cmd, err := startTerminal(ctx, zeros(terminalBytes)...)
	if err != nil {
		return err
	}
	defer master.Close()
	n, err := drain(master)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		return err
	}
	return floorRate(m, begin, n, terminalBytes)
}

func keystrokeFloor(ctx context.Context, m *sample) error {
	master, cmd, err := startTerminal(ctx, rawCat...)
	if err != nil {
		return err
	}
	defer func() {
		_ = master.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed above
	}()
	return echoes(ctx, m, "echo", master)
}

// echoes measures the echo of keys.
func echoes(ctx context.Context, m *sample, what string, terminal io.ReadWriter) error {
	key, err := typistAt(terminal)
	if err != nil {
		return err
	}
	return latencies(ctx, m, what, keys, keyPause, key)
}

// typistAt waits for the first output of the program that echoes. It returns a function
// that types a key and waits for its echo.
func typistAt(terminal io.ReadWriter) (key func() error, err error) {
	buf := make([]byte, 4096)
	if _, err := terminal.Read(buf); err != nil {
		return nil, err
	}
	return func() error {
		if _, err := terminal.Write([]byte("x")); err != nil {
			return err
		}
		_, err := terminal.Read(buf)
		return err
	}, nil
}

func spawnFloor(ctx context.Context, m *sample) error {
	return latencies(ctx, m, "start to closed", startsAlone, 0, func() error {
		cmd := exec.CommandContext(ctx, "/bin/true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		_, err := cmd.Output()
		return err
	})
}

// terminateFloor kills processes and waits for them, all at once and one by one.
func terminateFloor(ctx context.Context, m *sample) error {
	for _, figure := range []struct {
		name   string
		atOnce int
	}{{"1,000 terminated, 64 in flight", terminated}, {"1,000 terminated, one by one", 1}} {
		cmds, err := sleepers(ctx, terminated)
		if err != nil {
			return err
		}
		begin := time.Now()
		for some := range slices.Chunk(cmds, figure.atOnce) {
			for _, cmd := range some {
				err = errors.Join(err, cmd.Process.Kill())
			}
			for _, cmd := range some {
				_ = cmd.Wait() // killed
			}
		}
		if err != nil {
			return err
		}
		m.add(figure.name, "ms", lower, time.Since(begin).Seconds()*1e3)
	}
	return nil
}

func sleepers(ctx context.Context, n int) (cmds []*exec.Cmd, err error) {
	for range n {
		cmd := exec.CommandContext(ctx, "/bin/sleep", "10000")
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		cmds = append(cmds, cmd)
	}
	return cmds, nil
}

func readFileFloor(_ context.Context, m *sample) error {
	path, remove, err := file(fileBytes)
	if err != nil {
		return err
	}
	defer remove()
	begin := time.Now()
	for range fileTimes {
		if _, err := os.ReadFile(path); err != nil {
			return err
		}
	}
	fileRate(m, begin)
	return nil
}

func writeFileFloor(_ context.Context, m *sample) error {
	path, remove, err := file(0)
	if err != nil {
		return err
	}
	defer remove()
	data := make([]byte, fileBytes)
	begin := time.Now()
	for range fileTimes {
		if err := os.WriteFile(path+".new", data, 0o644); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	fileRate(m, begin)
	return nil
}
