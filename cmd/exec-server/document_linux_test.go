package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documented is one command of docs/cli.md with what it prints.
type documented struct {
	line    int
	command string
	output  []string
}

// documentedCommands returns the commands in the blocks of type console.
func documentedCommands(text string) (commands []documented) {
	console := false
	for i, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, "```"):
			console = line == "```console"
		case !console:
		case strings.HasPrefix(line, "$ "):
			commands = append(commands, documented{line: i + 1, command: line[2:]})
		default:
			last := &commands[len(commands)-1]
			last.output = append(last.output, line)
		}
	}
	return commands
}

// volatile are the parts of outputs that are different each time. Of the spaces before a
// time, which may align it, one is left.
var volatile = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d| *\b(\d+(ms|s|m|h))+\b|\b[0-9a-f]{8}\b`)

// pattern returns a regular expression for a documented output. "..." stands for anything.
func (d documented) pattern() string {
	text := strings.Join(append(d.output, ""), "\n")
	text = regexp.QuoteMeta(volatile.ReplaceAllString(text, " VOLATILE"))
	text = strings.ReplaceAll(text, regexp.QuoteMeta("...\n"), `(?s:.*)`)
	return `\A` + strings.ReplaceAll(text, regexp.QuoteMeta("..."), `.*`) + `\z`
}

// TestDocument runs the examples of docs/cli.md, each in a shell of its own. Each must
// print what the document says, apart from what is different each time.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	project := filepath.Join(home, "project")
	for name, content := range map[string]string{
		"hello.txt": "Hello from the box.\n", "src/main.go": "package main\n",
	} {
		path := filepath.Join(project, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o644); err != nil { // whatever the umask
			t.Fatal(err)
		}
	}
	environment := []string{"HOME=" + home, "CODEX_HOME=", "CODEX_EXEC_SERVER_URL=", "SHELL=/bin/bash"}
	p, err := startServer(project, environment, "--listen", "ws://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	entry := fmt.Sprintf("[[environments]]\nid = \"box\"\nurl = %q\n", p.url)
	if err := os.Mkdir(filepath.Join(home, ".codex"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".codex", "environments.toml"), []byte(entry), 0o600); err != nil {
		t.Fatal(err)
	}
	run := exec.Command("exec-server", "run", "--on", "box", "--", "sh", "-c", "echo begun; exec sleep 600")
	run.Env = append(os.Environ(), environment...)
	stdout, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = run.Process.Kill()
		_ = run.Wait()
	})
	if _, err := io.ReadFull(stdout, make([]byte, len("begun\n"))); err != nil {
		t.Fatal(err)
	}
	commands := documentedCommands(string(text))
	if len(commands) < 10 {
		t.Fatalf("the document has %d examples", len(commands))
	}
	for _, example := range commands {
		command := exec.Command("sh", "-c", example.command)
		command.Dir = home
		command.Env = append(os.Environ(), environment...)
		out, _ := command.CombinedOutput() // an example may fail
		got := strings.ReplaceAll(string(out), home, "/home/me")
		got = volatile.ReplaceAllString(got, " VOLATILE")
		if !regexp.MustCompile(example.pattern()).MatchString(got) {
			t.Errorf("docs/cli.md:%d: %s\nprints:\n%s\nthe document says:\n%s", example.line, example.command, got, strings.Join(example.output, "\n"))
		}
	}
}
