//go:build linux

package main

import (
	"bufio"
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
	log  *os.File
	open []*client
}

// startServer runs a command in a shell, so that it may be more than a program, and waits
// for its URL.
func startServer(ctx context.Context, command string) (*server, error) {
	log, err := os.CreateTemp("", "bench-*.log")
	if err != nil {
		return nil, err
	}
	s := &server{cmd: exec.Command("/bin/sh", "-c", "exec "+command), log: log}
	s.cmd.Stderr = log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		s.closeLog()
		return nil, fmt.Errorf("start %q: %w", command, err)
	}
	urls := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if i := strings.Index(lines.Text(), "ws://"); i >= 0 {
				urls <- strings.TrimSpace(lines.Text()[i:])
				break
			}
		}
		_, _ = io.Copy(io.Discard, stdout)
	}()
	select {
	case s.url = <-urls:
	case <-ctx.Done():
	case <-time.After(20 * time.Second):
	}
	if s.url == "" {
		text, _ := os.ReadFile(log.Name()) // may be empty
		s.stop()
		return nil, fmt.Errorf("%q printed no ws:// URL; its stderr: %.500s", command, text)
	}
	s.exe, err = os.Readlink(fmt.Sprintf("/proc/%d/exe", s.cmd.Process.Pid))
	if err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// connect opens a connection with a session of its own.
func (s *server) connect(ctx context.Context) (*client, error) {
	c, err := dial(ctx, s.url)
	if err == nil {
		s.open = append(s.open, c)
	}
	return c, err
}

func (s *server) stop() {
	for _, c := range s.open {
		c.close()
	}
	_ = syscall.Kill(s.cmd.Process.Pid, syscall.SIGTERM)
	kill := time.AfterFunc(5*time.Second, func() { _ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) })
	_ = s.cmd.Wait() // its status says nothing about the measurement
	kill.Stop()
	s.closeLog()
}

func (s *server) closeLog() {
	_ = s.log.Close()
	_ = os.Remove(s.log.Name())
}

// pids returns the processes of the server itself: those of its tree that run its
// program, without its commands.
func (s *server) pids() []int {
	return s.tree(func(pid int) bool {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return err == nil && exe == s.exe
	})
}

// tree returns the server and those of its descendants that are wanted, with their
// descendants.
func (s *server) tree(wanted func(pid int) bool) []int {
	children := map[int][]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		if pid, stat, err := readStat(path); err == nil {
			parent, _ := strconv.Atoi(stat[1])
			children[parent] = append(children[parent], pid)
		}
	}
	var own []int
	for queue := []int{s.cmd.Process.Pid}; len(queue) > 0; queue = queue[1:] {
		if wanted(queue[0]) {
			own = append(own, queue[0])
			queue = append(queue, children[queue[0]]...)
		}
	}
	return own
}

// readStat reads /proc/PID/stat. The fields are those after the name, beginning with the
// state.
func readStat(path string) (pid int, fields []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, nil, err
	}
	end := strings.LastIndexByte(string(text), ')')
	pid, err = strconv.Atoi(filepath.Base(filepath.Dir(path)))
	fields = strings.Fields(string(text[end+1:]))
	if err != nil || len(fields) < 13 {
		return 0, nil, fmt.Errorf("%s: %q", path, text)
	}
	return pid, fields, nil
}

// cpu returns the processor time that the server itself has used.
func (s *server) cpu() time.Duration {
	const tick = 10 * time.Millisecond // USER_HZ is 100 everywhere
	var total time.Duration
	for _, pid := range s.pids() {
		_, fields, err := readStat(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		user, _ := strconv.Atoi(fields[11])
		system, _ := strconv.Atoi(fields[12])
		total += time.Duration(user+system) * tick
	}
	return total
}

// rss returns the resident memory of the server in bytes. Pages that its processes share
// count once.
func (s *server) rss() float64 {
	total := 0.0
	for _, pid := range s.pids() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
				kB, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
				total += kB * 1024
			}
		}
	}
	return total
}

// binarySize returns the size of the server's program in bytes.
func (s *server) binarySize() (float64, error) {
	info, err := os.Stat(s.exe)
	if err != nil {
		return 0, err
	}
	return float64(info.Size()), nil
}
