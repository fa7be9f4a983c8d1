package pages

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// shell is one that a person has open. It keeps its directory, variables and umask from
// one command to the next.
type shell struct {
	t       *testing.T
	cmd     *exec.Cmd
	dir     string // of the files with commands and their output
	input   *os.File
	results *bufio.Reader
	n       int
}

// newShell starts a shell. Its commands can write to dir.
func newShell(t *testing.T, cmd *exec.Cmd, dir string) *shell {
	t.Helper()
	stdin, input, err := os.Pipe()
	must(t, err)
	results, report, err := os.Pipe()
	must(t, err)
	cmd.Stdin, cmd.Stdout = stdin, report
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	must(t, cmd.Start())
	stdin.Close()
	report.Close()
	s := &shell{t: t, cmd: cmd, dir: dir, input: input, results: bufio.NewReader(results)}
	t.Cleanup(func() {
		input.Close()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		_ = cmd.Wait()
		results.Close()
	})
	return s
}

// file writes the text of a command, and returns its path without an extension.
func (s *shell) file(text string) string {
	s.n++
	path := filepath.Join(s.dir, strconv.Itoa(s.n))
	must(s.t, os.WriteFile(path+".sh", []byte(text+"\n"), 0o644))
	return path
}

// run types a command and returns what it prints and its exit code.
func (s *shell) run(text string) (output string, code int) {
	s.t.Helper()
	path := s.file(text)
	fmt.Fprintf(s.input, ". %[1]s.sh </dev/null >%[1]s.out 2>&1; echo $?\n", path)
	line, err := s.results.ReadString('\n')
	if err != nil {
		s.t.Fatalf("the shell has ended at %s: %v", text, err)
	}
	code, err = strconv.Atoi(strings.TrimSpace(line))
	must(s.t, err)
	out, err := os.ReadFile(path + ".out")
	must(s.t, err)
	return string(out), code
}

// serve types a command that runs until it is stopped. It returns when ready accepts what
// the command has printed, and how to stop the command.
func (s *shell) serve(text string, ready func(output string) bool) {
	s.t.Helper()
	path := s.file("exec " + text)
	// A subshell of its own: its last word is the command, which gets the signal at the end.
	fmt.Fprintf(s.input, "(. %[1]s.sh) </dev/null >%[1]s.out 2>&1 & echo $!\n", path)
	line, err := s.results.ReadString('\n')
	must(s.t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	must(s.t, err)
	testkit.WaitFor(s.t, testkit.Patience, func() error {
		out, _ := os.ReadFile(path + ".out")
		switch {
		case ready(string(out)):
			return nil
		case !testkit.Alive(pid):
			s.t.Fatalf("%s\nhas ended and printed:\n%s", text, out)
		}
		return fmt.Errorf("%s\nis not ready, and has printed:\n%s", text, out)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// commands splits a block of a page into what a person would type, one command after
// another, without lines of comments. A here-document belongs to its command.
func commands(block string) (list []string) {
	var command strings.Builder
	end := "" // of the here-document
	for line := range strings.Lines(block) {
		if command.Len() == 0 && (strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#")) {
			continue
		}
		command.WriteString(line)
		line = strings.TrimSuffix(line, "\n")
		if _, delimiter, found := strings.Cut(line, "<<"); found && end == "" {
			end = strings.Trim(delimiter, "'")
			continue
		}
		if line == end || end == "" && !strings.HasSuffix(line, "\\") {
			list = append(list, strings.TrimSuffix(command.String(), "\n"))
			command.Reset()
			end = ""
		}
	}
	return list
}
