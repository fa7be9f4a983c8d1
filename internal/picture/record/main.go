//go:build linux

// Command record draws the picture of the README from a real run: a laptop and a box, which
// are namespaces of this machine, an sshd on the box, and on the laptop a terminal in which
// Codex works. A script takes the place of the model. "make picture" runs it, as root.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"execserver/internal/machine"
	"execserver/internal/picture"
	"execserver/internal/responses"
)

const (
	columns, rows = 92, 40
	project       = "/root/project"
	question      = "Print the hostname of your machine."
)

func main() {
	machine.Init()
	runtime.LockOSThread() // the machines end with the thread that starts them
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: record EXEC-SERVER CODEX-FOLDER PICTURE")
	}
	server, err := filepath.Abs(args[0])
	if err != nil {
		return err
	}
	root, err := os.MkdirTemp("", "record-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	model := responses.Start(answer)
	defer model.Close()
	n, err := newNetwork(root)
	if err != nil {
		return err
	}
	box, err := n.startBox(server)
	if err != nil {
		return err
	}
	defer end(box)
	laptop, err := n.startLaptop(server, args[1], model)
	if err != nil {
		return err
	}
	defer end(laptop)
	shown, err := play(fmt.Sprintf("/proc/%d/root/run/tmux", laptop.Process.Pid))
	if err != nil {
		return err
	}
	svg := picture.SVG("Codex on the laptop, its commands on the box", shown, columns)
	return os.WriteFile(args[2], []byte(svg), 0o644)
}

// answer is the model: it asks the machine for its name, and says it.
func answer(r *responses.Request) []responses.Item {
	if len(r.Tools) == 0 { // Codex wants a title for the conversation
		return []responses.Item{responses.Message("The machine")}
	}
	out, done := r.Output("name")
	if !done {
		return []responses.Item{responses.Call("name", "exec_command", map[string]any{"cmd": "hostname"})}
	}
	_, name, _ := strings.Cut(out.Text(), "\nOutput:\n")
	return []responses.Item{responses.Message(fmt.Sprintf("This is **%s**.", strings.TrimSpace(name)))}
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// wait waits until the condition gives no error any more.
func wait(condition func() error) error {
	const patience = time.Minute
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := condition()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
