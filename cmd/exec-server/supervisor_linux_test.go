package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"execserver/internal/process"
	"execserver/internal/testkit"
)

// states returns the states of supervisor and server, as ps shows them.
func states(supervisor, server int) string {
	var all string
	for _, pid := range []int{supervisor, server} {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, ok := strings.Cut(string(stat), ") ")
		if err != nil || !ok {
			all += "-"
			continue
		}
		all += strings.Replace(rest[:1], "R", "S", 1) // R and S both mean that it runs
	}
	return all
}

func waitStates(t *testing.T, supervisor, server int, want string) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if got := states(supervisor, server); got != want {
			return fmt.Errorf("supervisor and server are %q, want %q", got, want)
		}
		return nil
	})
}

// TestSupervisorIsAJob checks that on a terminal the shell stops, continues and interrupts
// supervisor and server as one job.
func TestSupervisorIsAJob(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	p, err := process.Start(process.Spec{
		Argv: []string{"/bin/sh", "-i"}, Dir: "/", TTY: true,
		Env: map[string]string{"PATH": os.Getenv("PATH"), "PS1": "$ "},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		p.Abandon()
		<-p.Closed()
		p.Release()
	})
	shown := func() (text []byte) {
		for _, c := range p.Log.Read(0, nil).Chunks {
			text = append(text, c.Data...)
		}
		return text
	}
	typed := func(text string) {
		if _, cancelled, _ := p.Write([]byte(text), nil, nil, func(wait func()) { wait() }); cancelled {
			t.Fatal("the terminal takes nothing")
		}
	}
	typed(fmt.Sprintf("exec-server --listen ws://127.0.0.1:0 >%s\n", ready))
	testkit.WaitFor(t, testkit.Patience, func() error {
		if line, err := os.ReadFile(ready); err != nil || !bytes.HasSuffix(line, []byte("\n")) {
			return fmt.Errorf("banner %q %w; the terminal shows %q", line, err, shown())
		}
		return nil
	})
	supervisor := testkit.Children(p.Pid())[0]
	server := testkit.Children(supervisor)[0]
	waitStates(t, supervisor, server, "SS")
	typed("\x1a")
	waitStates(t, supervisor, server, "TT")
	typed("fg\n")
	waitStates(t, supervisor, server, "SS")
	typed("\x03")
	waitStates(t, supervisor, server, "--")
	typed("echo code $((40+$?))\n")
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !bytes.Contains(shown(), []byte("code 40\r\n")) {
			return fmt.Errorf("the terminal shows %q", shown())
		}
		return nil
	})
}

// TestSupervisorPassesOn checks that signals to the supervisor reach the server, and that the
// program ends as the server did.
func TestSupervisorPassesOn(t *testing.T) {
	for sig, want := range map[syscall.Signal]syscall.WaitStatus{
		syscall.SIGTERM: 0,
		syscall.SIGQUIT: 2 << 8, // as a Go program does: it prints its goroutines
		syscall.SIGINT:  0,
	} {
		p := startListening(t, nil)
		p.server()
		if err := p.command.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if got := p.ending().Sys().(syscall.WaitStatus); got != want {
			t.Errorf("%v: the program ended with %#x, want %#x", sig, got, want)
		}
	}
	p := startListening(t, nil)
	_ = p.command.Process.Signal(syscall.SIGUSR1) // means nothing to the server
	p.connect().call("environment/status", nil, nil)
	// The supervisor does not forward this one.
	_ = syscall.Kill(p.server(), syscall.SIGSEGV)
	if got := p.ending().Sys().(syscall.WaitStatus); got.ExitStatus() != 2 && got.Signal() != syscall.SIGSEGV {
		t.Errorf("the server got SIGSEGV, and the program ended with %#x", got)
	}
}

// TestKilledGroup kills the supervisor with its group. The server notices, and ends in order.
func TestKilledGroup(t *testing.T) {
	p := startOwned(t, &syscall.SysProcAttr{Setpgid: true}, false, "--listen=stdio")
	c := p.connect()
	word := newWord()
	c.trees(word)
	if err := syscall.Kill(-p.command.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.NoneWithWord(t, word)
}

// TestSupervisorPassesDescriptors checks that supervisor and server have the descriptors of the
// program, and that its children do not.
func TestSupervisorPassesDescriptors(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	command := exec.Command("exec-server", "--listen=stdio")
	command.ExtraFiles = []*os.File{w}
	started, err := launch(command, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(started.kill)
	_ = w.Close()
	p := &ownedProgram{started, t}
	c := p.connect()
	if _, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/3", p.server())); err != nil {
		t.Errorf("the server has no descriptor 3: %v", err)
	}
	c.start(object{"processId": "ls", "argv": []string{"/bin/ls", "/proc/self/fd"}, "cwd": "/", "env": object{}, "tty": false})
	c.closed("ls")
	if got := strings.Fields(c.processes.Of("ls").Output.String()); len(got) != 4 { // 0 to 2, and that of the directory
		t.Errorf("a child has the descriptors %v", got)
	}
	_ = p.stdin.Close()
	p.exits(t, 0)
}

// TestSupervisorNotByEnvironment checks that an environment variable alone does not make the
// program a supervisor that looks for what its server left.
func TestSupervisorNotByEnvironment(t *testing.T) {
	for _, value := range []string{"$$\n1\n0\n\n", "0", "3"} {
		script := "EXEC_SERVER_LEFT=\"" + value + "\" exec exec-server --without=supervisor --listen=stdio"
		started, err := launch(exec.Command("/bin/sh", "-c", script), false)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(started.kill)
		p := &ownedProgram{started, t}
		p.connect()
		if children := testkit.Children(p.command.Process.Pid); len(children) > 0 {
			t.Errorf("%q: the program has become a supervisor, of %v", value, children)
		}
		_ = p.stdin.Close()
		p.exits(t, 0)
	}
}

// TestSupervisorIsSmall checks that the supervisor has about a megabyte that it does not share
// with the server.
func TestSupervisorIsSmall(t *testing.T) {
	if testkit.RaceEnabled {
		t.Skip("the race detector takes memory of its own")
	}
	program := filepath.Join(t.TempDir(), "exec-server")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cmd := exec.Command(program)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}()
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	memory := make(map[string]int)
	for _, file := range []string{"status", "smaps_rollup"} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", cmd.Process.Pid, file))
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) == 3 && fields[2] == "kB" {
				memory[fields[0]], _ = strconv.Atoi(fields[1])
			}
		}
	}
	t.Logf("the supervisor has %d kB of its own, resident %d kB, its share %d kB", memory["RssAnon:"], memory["VmRSS:"], memory["Pss:"])
	if memory["RssAnon:"] > 2500 {
		t.Errorf("the supervisor has %d kB of its own", memory["RssAnon:"])
	}
}

// TestStartIsQuick checks that a server waits only briefly for its supervisor to start it
// again.
func TestStartIsQuick(t *testing.T) {
	for supervisor, flags := range withAndWithoutSupervisor {
		var took []time.Duration
		for range 5 {
			before := time.Now()
			startListening(t, nil, flags...)
			took = append(took, time.Since(before).Round(time.Microsecond))
		}
		t.Logf("%s: listens after %v", supervisor, took)
	}
}
