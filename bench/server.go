//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is an exec-server that this program started.
type server struct {
	url  string
	cmd  *exec.Cmd
	exe  string // the program that serves
	log  bytes.Buffer
	open []*client
}

// startServer runs a command in a shell, so that it may be more than a program, and waits
// for its URL.
func startServer(ctx context.Context, command string) (*server, error) {
	s := &server{cmd: exec.Command("/bin/sh", "-c", "exec "+command)}
	s.cmd.Stderr = &s.log
	s.cmd.WaitDelay = time.Second // what the server leaves may hold its stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start %q: %w", command, err)
	}
	defer context.AfterFunc(ctx, s.kill)() // before it prints its URL
	lines := bufio.NewScanner(stdout)
	for s.url == "" && lines.Scan() {
		if i := strings.Index(lines.Text(), "ws://"); i >= 0 {
			s.url = strings.TrimSpace(lines.Text()[i:])
		}
	}
	s.exe, err = os.Readlink(fmt.Sprintf("/proc/%d/exe", s.cmd.Process.Pid))
	if s.url == "" || err != nil {
		s.stop()
		return nil, fmt.Errorf("%q printed no ws:// URL; its stderr: %.500s", command, &s.log)
	}
	go func() { _, _ = io.Copy(io.Discard, stdout) }() // ends with the server
	return s, nil
}

// connect opens a connection with a session of its own.
func (s *server) connect(ctx context.Context) *client {
	c := dial(ctx, s.url)
	s.open = append(s.open, c)
	return c
}

func (s *server) stop() {
	for _, c := range s.open {
		c.close()
	}
	_ = syscall.Kill(s.cmd.Process.Pid, syscall.SIGTERM)
	kill := time.AfterFunc(5*time.Second, s.kill)
	_ = s.cmd.Wait() // its status says nothing about the measurement
	kill.Stop()
}

func (s *server) kill() { _ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) }

// each calls f for each process that runs the server's program: a server may be several.
func (s *server) each(f func(proc string)) {
	all, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, proc := range all {
		if exe, err := os.Readlink(proc + "/exe"); err == nil && exe == s.exe {
			f(proc)
		}
	}
}

// cpu returns the processor time that the server itself has used.
func (s *server) cpu() (total time.Duration) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 everywhere
	s.each(func(proc string) {
		text, _ := os.ReadFile(proc + "/stat") // it may have ended
		if fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])); len(fields) > 12 {
			user, _ := strconv.Atoi(fields[11])
			system, _ := strconv.Atoi(fields[12])
			total += time.Duration(user+system) * tick
		}
	})
	return total
}

// memory returns the resident memory of the server in bytes. Pages that its processes share
// count once.
func (s *server) memory() (total float64) {
	s.each(func(proc string) {
		text, _ := os.ReadFile(proc + "/smaps_rollup") // it may have ended
		if _, rest, ok := strings.Cut(string(text), "\nPss:"); ok {
			kB, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			total += kB * 1024
		}
	})
	return total
}
