//go:build unix

package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Alive reports whether a process exists and runs. A process whose first thread has exited while
// others still run looks like a zombie; it keeps its program and its files open.
func Alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return os.IsNotExist(err) && !hasProc()
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	const threads = 17 // of the fields from the state on
	fields := strings.Fields(rest)
	return len(fields) > threads && (fields[0] != "Z" || fields[threads] != "1")
}

// Gone waits until processes have ended.
func Gone(t testing.TB, pids ...int) {
	t.Helper()
	WaitFor(t, Patience, func() error {
		for _, pid := range pids {
			if Alive(pid) {
				return fmt.Errorf("process %d is alive", pid)
			}
		}
		return nil
	})
}

func hasProc() bool {
	_, err := os.Stat("/proc/self/stat")
	return err == nil
}

// openPoller has the runtime open the descriptors with which it waits for others. It keeps
// them for as long as the program runs.
var openPoller = sync.OnceFunc(func() {
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
})

// Descriptors counts the open descriptors of this process. Those that the runtime opens
// once are among them from the first call on.
func Descriptors(t testing.TB) int {
	t.Helper()
	openPoller()
	return DescriptorsOf(t, os.Getpid()) - 1 // the directory that is read
}

// DescriptorsOf counts the open descriptors of a process.
func DescriptorsOf(t testing.TB, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil && !hasProc() {
		t.Skipf("descriptors cannot be counted here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// Children lists the children of a process, including zombies.
func Children(pid int) (children []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list) // fails if the thread has ended
		for _, word := range strings.Fields(string(text)) {
			child, _ := strconv.Atoi(word)
			children = append(children, child)
		}
	}
	return children
}

// Zombies lists the zombies among the children of this process.
func Zombies(t testing.TB) []string {
	t.Helper()
	found, err := zombies()
	if err != nil {
		t.Skipf("zombies cannot be counted here: %v", err)
	}
	return found
}

func zombies() (found []string, err error) {
	entries, err := os.ReadDir("/proc")
	for _, e := range entries {
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		_, rest, ok := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(rest); ok && len(fields) > 1 && fields[0] == "Z" && fields[1] == strconv.Itoa(os.Getpid()) {
			found = append(found, string(stat))
		}
	}
	return found, err
}

// WithVariable lists the processes, except this one, that started with an environment
// variable of that value. It finds the descendants of a test even after their parent has
// changed.
func WithVariable(t testing.TB, name, value string) []string {
	t.Helper()
	found, err := withVariable(name, value)
	if err != nil {
		t.Skipf("processes cannot be looked at here: %v", err)
	}
	return found
}

func withVariable(name, value string) (found []string, err error) {
	entries, err := os.ReadDir("/proc")
	want := "\x00" + name + "=" + value + "\x00"
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		vars, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || !strings.Contains("\x00"+string(vars), want) {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		found = append(found, fmt.Sprintf("%d %q", pid, line))
	}
	return found, err
}
