//go:build unix

package testkit

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// WaitFor polls until check returns nil, and fails the test when that takes too
// long. It is for what cannot be waited for otherwise.
func WaitFor(t testing.TB, limit time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %v", limit, err)
		}
		time.Sleep(pause)
	}
}

// Alive reports whether a process exists and is not a zombie.
func Alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return os.IsNotExist(err) && !hasProc()
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func hasProc() bool {
	_, err := os.Stat("/proc/self/stat")
	return err == nil
}

// Descriptors counts the open descriptors of this process.
func Descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("descriptors cannot be counted here: %v", err)
	}
	return len(entries) - 1 // the directory itself
}

// Zombies lists the ended children of this process that nobody has reaped.
func Zombies(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Skipf("zombies cannot be counted here: %v", err)
	}
	var zombies []string
	for _, e := range entries {
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		_, rest, ok := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(rest); ok && len(fields) > 1 && fields[0] == "Z" && fields[1] == strconv.Itoa(os.Getpid()) {
			zombies = append(zombies, string(stat))
		}
	}
	return zombies
}

// WithVariable lists the processes, but this one, that were started with an
// environment variable of that value: what a test has started with it is found
// whoever its parent is by now.
func WithVariable(t testing.TB, name, value string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Skipf("processes cannot be looked at here: %v", err)
	}
	want := "\x00" + name + "=" + value + "\x00"
	var found []string
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
	return found
}
