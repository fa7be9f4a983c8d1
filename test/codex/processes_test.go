//go:build unix

package codex

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// A process is one of the machine's.
type process struct {
	pid     int
	command string
	remote  bool // it is the server or was started by it
}

func (p process) String() string { return fmt.Sprintf("process %d (%s)", p.pid, p.command) }

// processes returns all processes of the run, known by the environment that they inherited.
// It sees nothing on systems without /proc. Zombies have no environment.
func (r *run) processes(t testing.TB) []process {
	t.Helper()
	if runtime.GOOS != "linux" {
		return nil
	}
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var found []process
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err != nil {
			continue // gone, or not ours
		}
		env := bytes.Split(environ, []byte{0})
		has := func(entry string) bool {
			for _, e := range env {
				if string(e) == entry {
					return true
				}
			}
			return false
		}
		if !has(runVariable + "=" + r.id) {
			continue
		}
		folder := filepath.Dir(file)
		command, err := os.ReadFile(filepath.Join(folder, "cmdline"))
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			continue
		}
		found = append(found, process{
			pid:     pid,
			command: strings.TrimSpace(strings.ReplaceAll(string(command), "\x00", " ")),
			remote:  has(sideVariable + "=server"),
		})
	}
	return found
}

// commands returns those processes of the run that the server has started, and what these
// started. A gateway starts none. Over stdio the server itself is among them. A server may be
// several processes, with the same command line.
func (r *run) commands(t testing.TB) []process {
	t.Helper()
	var found []process
	for _, p := range r.processes(t) {
		if p.remote && (r.server == nil || p.command != strings.Join(r.server.cmd.Args, " ")) {
			found = append(found, p)
		}
	}
	return found
}

func noneOf(processes []process) error {
	if len(processes) > 0 {
		return fmt.Errorf("still there: %v", processes)
	}
	return nil
}
