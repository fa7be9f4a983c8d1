package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestMachine looks around on another machine, which can change nothing on this one.
func TestMachine(t *testing.T) {
	runtime.LockOSThread() // the machine ends with the thread
	defer runtime.UnlockOSThread()
	tool := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\necho a tool\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	before, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := machineCommand(machine{
		Name:  "elsewhere",
		Root:  t.TempDir(),
		Files: map[string]string{"/home/me/note": "a note\n"},
		Links: map[string]string{"/opt/tool": tool},
		Dir:   "/home/me",
		Argv: []string{"/bin/sh", "-c", `cat /proc/sys/kernel/hostname; pwd; cat note; /opt/tool; ls /root; echo $$
touch /usr/here 2>/dev/null || echo read-only; echo $GREETING`},
		Env: []string{"PATH=" + os.Getenv("PATH"), "GREETING=hello"},
	})
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if cmd.Process == nil || cmd.ProcessState.ExitCode() == 125 {
		t.Skipf("this machine allows no namespaces: %v %s", err, out)
	}
	want := "elsewhere\n/home/me\na note\na tool\n1\nread-only\nhello\n"
	if err != nil || string(out) != want {
		t.Errorf("the other machine says %q, %v; want %q", out, err, want)
	}
	if after, err := os.Hostname(); err != nil || after != before {
		t.Errorf("the host name here is %q, %v; before it was %q", after, err, before)
	}
}

// TestMissingProgram checks that the user learns what could not be started.
func TestMissingProgram(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd, err := machineCommand(machine{Name: "elsewhere", Root: t.TempDir(), Dir: "/home", Argv: []string{"/opt/missing"}})
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	if cmd.Process == nil {
		t.Skipf("this machine allows no namespaces: %v", err)
	}
	if text := string(out); cmd.ProcessState.ExitCode() != 125 || !strings.Contains(text, "/opt/missing") || !strings.Contains(text, "elsewhere") {
		t.Errorf("exit code %d, output %q; want 125, and the program and the machine named", cmd.ProcessState.ExitCode(), text)
	}
}
