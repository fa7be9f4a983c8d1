//go:build linux

package fleet

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// TestStartOfDocument types the commands of docs/fleet.md, "Start", with a home that is empty,
// and other ports.
func TestStartOfDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "fleet.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Start\n")
	section, _, _ = strings.Cut(section, "\n## ")
	n := &node{client: testkit.FreeAddress(t)}
	ports := strings.NewReplacer("localhost:8765", n.client, "127.0.0.1:4222", testkit.FreeAddress(t))
	var blocks []string
	for _, part := range strings.Split(section, "\n```sh\n")[1:] {
		block, _, _ := strings.Cut(part, "\n```\n")
		blocks = append(blocks, ports.Replace(block))
	}
	if len(blocks) != 4 {
		t.Fatalf("the section has %d blocks of commands, not those of a gateway, a machine, a client and of fleet", len(blocks))
	}
	p := newPerson(t)
	p.serves(blocks[0])
	testkit.WaitFor(t, testkit.Patience, func() error { // or the machine may say that it has to try again
		if got := readiness(t, n); got != http.StatusOK {
			return fmt.Errorf("/readyz answers %d", got)
		}
		return nil
	})
	machine, log := p.serves(blocks[1])
	out, err := p.shell("set -e\n" + blocks[2] + "\n" + blocks[3]).CombinedOutput()
	host, _ := os.Hostname()
	for _, want := range []string{
		host + "\nGPU 0\n", "\nbox-7    serving ", "\n  \"name\": \"box-7\",\n", "\nbox-7: GPU 0\n", "1 of 1 machines succeeded\n", "box-7 drains: ",
	} {
		if !strings.Contains("\n"+string(out), want) {
			t.Errorf("%q is missing", want)
		}
	}
	if err != nil || t.Failed() {
		t.Fatalf("%v\n%s", err, out)
	}
	testkit.Within(t, "the end of the machine that was drained", func() { _ = machine.Wait() })
	if code := machine.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the machine ends with %d", code)
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "WARN") && !strings.Contains(line, "draining: ") {
			t.Errorf("the machine warns: %s", line)
		}
	}
}

// person types commands.
type person struct {
	t   *testing.T
	dir string
	env []string
}

// newPerson returns somebody with an empty home, an empty directory, and a GPU.
func newPerson(t *testing.T) *person {
	t.Helper()
	program, err := build()
	if err != nil {
		t.Fatal(err)
	}
	bin, home := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte("#!/bin/sh\necho GPU 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Dir(program) + ":" + bin + ":" + os.Getenv("PATH")
	return &person{t: t, dir: t.TempDir(), env: []string{"HOME=" + home, "PATH=" + path}}
}

func (p *person) shell(script string) *exec.Cmd {
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Dir, cmd.Env = p.dir, p.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// serves types commands of which the last one serves, until the test ends. It returns when that
// listens.
func (p *person) serves(script string) (*exec.Cmd, *testkit.Buffer) {
	p.t.Helper()
	at := strings.LastIndex("\n"+script, "\nexec-fleet ")
	if at < 0 {
		p.t.Fatalf("the last command does not serve:\n%s", script)
	}
	cmd, log := p.shell("set -e\n"+script[:at]+"exec "+script[at:]), new(testkit.Buffer)
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		p.t.Fatalf("%s: %q, %v\n%s", script, line, err, log)
	}
	return cmd, log
}
