// Package bootstrap starts this program on another machine over any command that runs a POSIX
// shell there, such as ssh, and uploads it first if it is missing. The machine needs only sh and
// the tools of every system. [Start] is the entry point.
package bootstrap

import (
	"bufio"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"execserver/internal/sys"
)

// Options are the options of Start. Version, Args and Silent are required.
type Options struct {
	// Releases are directories with programs for other kinds of machines, named
	// exec-server-OS-ARCH. The first match counts.
	Releases []string

	// Version is the version that such a program must report.
	Version string

	// Args are the arguments of the program.
	Args []string

	// Dir is the directory for programs on the other machine: absolute or below ~/. The default
	// is exec-server in the user's cache directory.
	Dir string

	// Typed means that the command reads shell commands only from standard input. Otherwise Start
	// also appends one to its arguments.
	Typed bool

	// Silent is called in its own goroutine if no shell has answered after Silence. Start
	// continues to wait.
	Silence time.Duration
	Silent  func()

	// Progress is called during an upload with the bytes that have arrived and the total size. It
	// may be nil.
	Progress func(kind Kind, arrived, size int64)
}

// Session is a program on another machine. Read reads its standard output; Write and CloseWrite
// are for its standard input. Read and Write may be called concurrently. The caller must call
// End.
type Session struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	stdout  *os.File
	output  *bufio.Reader
	nonce   string
	noise   int    // bytes of lines that the script did not write
	said    string // the last of these lines
	gone    chan struct{}
	err     error // how the command ended; set before gone is closed
	end     func()
}

// maxNoise bounds the output of a login, and of everything else, before the program starts.
const maxNoise = 64 << 10

// stopTimeout bounds how long the command may take to end by itself.
const stopTimeout = 2 * time.Second

// Start starts a program on another machine. command runs a shell there; Start changes and starts
// it, and leaves its standard error to the caller. ctx bounds the start, not the session. The
// error is an *Error if the other machine is the cause, and an *EndedError if the command ended
// early.
func Start(ctx context.Context, command *exec.Cmd, opts *Options) (*Session, error) {
	s := &Session{command: command, nonce: rand.Text(), gone: make(chan struct{})}
	loader := loader(s.nonce)
	if !opts.Typed {
		command.Args = append(command.Args, loader)
	}
	if err := s.start(); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, s.Kill)
	err := s.bootstrap(loader, opts)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		s.End()
		return nil, s.explain(err)
	}
	return s, nil
}

// start starts the command.
func (s *Session) start() error {
	stdin, err := s.command.StdinPipe()
	if err != nil {
		return err
	}
	stdout, theirs, err := os.Pipe()
	if err != nil {
		_ = stdin.Close()
		return err
	}
	defer theirs.Close()
	sys.EnlargePipe(stdin)
	sys.EnlargePipe(stdout)
	s.command.Stdout = theirs
	s.command.WaitDelay = stopTimeout // its descendants may hold its standard error
	s.stdin, s.stdout, s.output = stdin, stdout, bufio.NewReaderSize(stdout, 64<<10)
	s.end = sync.OnceFunc(func() {
		_ = stdin.Close()
		s.stop()
		_ = stdout.Close()
	})
	if err := s.command.Start(); err != nil {
		_ = stdin.Close()
		_ = stdout.Close()
		return err
	}
	go func() { // ends with the command, which End kills
		defer close(s.gone)
		s.err = s.command.Wait()
	}()
	return nil
}

// loader returns a command for any shell, including csh and fish, that makes sh read scripts from
// standard input. Each script ends with the nonce, so a truncated one has no effect. read
// consumes no byte beyond a script.
func loader(nonce string) string {
	return fmt.Sprintf(`exec sh -c 'echo "exec-server %[1]s ready";es_text=;es_line=$(printf "\012x");es_end=${es_line%%x};`+
		`while IFS= read -r es_line;do case $es_line in %[1]s)eval "$es_text";es_text=;;*)es_text=$es_text$es_line$es_end;esac;done'`, nonce)
}

var (
	//go:embed bootstrap.sh
	bootstrapScript string
	//go:embed upload.sh
	uploadScript string
)

// script returns bootstrap.sh with its variables.
func (s *Session) script(programs programs, opts *Options) (string, error) {
	have, err := programs.words()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, variable := range [][2]string{
		{"es_nonce", s.nonce}, {"es_dir", opts.Dir}, {"es_have", have}, {"es_version", opts.Version},
	} {
		fmt.Fprintf(&b, "%s=%s\n", variable[0], quote(variable[1]))
	}
	b.WriteString(`es_exec() { exec "$es_program"`)
	for _, arg := range opts.Args {
		b.WriteString(" " + quote(arg))
	}
	b.WriteString("; }\n" + compact(bootstrapScript))
	return b.String(), nil
}

// run sends a script to the other machine.
func (s *Session) run(script string) error { return s.send(script + s.nonce + "\n") }

// send writes to the command. If the command has ended, send reads its remaining output.
func (s *Session) send(text string) error {
	_, err := io.WriteString(s.stdin, text)
	if err != nil && isBrokenPipe(err) {
		_ = s.stdout.SetReadDeadline(time.Now().Add(stopTimeout)) // it may only have closed its input
		for unread := error(nil); unread == nil; {
			_, unread = s.answer("ready")
		}
	}
	return err
}

// compact removes comments and indentation from a script.
func compact(script string) string {
	var b strings.Builder
	for line := range strings.Lines(script) {
		if line = strings.TrimLeft(line, "\t\n"); !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// quote quotes a word for sh.
func quote(word string) string {
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// bootstrap runs the script until it has become the program.
func (s *Session) bootstrap(loader string, opts *Options) error {
	// A startup file of the account may start another shell, which reads standard input, or read
	// standard input itself. Then the loader of the command line does not run, or a line is lost.
	// So the loader is sent as the first line too, and nothing else before one answers. The
	// loader of the command line runs it as a script, and starts again.
	if err := s.run(loader + "\n"); err != nil {
		return err
	}
	programs, err := find(opts.Releases) // while the command connects
	if err != nil {
		return err
	}
	script, err := s.script(programs, opts)
	if err != nil {
		return err
	}
	silence := time.AfterFunc(opts.Silence, opts.Silent)
	_, err = s.answer("ready")
	silence.Stop()
	if err != nil {
		return err
	}
	if err := s.run(script); err != nil {
		return err
	}
	words, err := s.answer("ready", "need", "start")
	if err == nil && words[0] == "ready" { // once more
		words, err = s.answer("need", "start")
	}
	if err != nil || words[0] == "start" {
		return err
	}
	return s.upload(programs, strings.Join(words[1:], " "), opts)
}

// answer returns the words of the next line of the script, which must begin with one of those
// wanted.
func (s *Session) answer(wanted ...string) ([]string, error) {
	marker := "exec-server " + s.nonce + " "
	for {
		line, err := s.output.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			s.hear(string(line))
			return nil, err
		}
		before, text, ours := strings.Cut(strings.TrimRight(string(line), "\r\n"), marker)
		if s.noise += len(before); s.noise > maxNoise {
			return nil, &Error{Kind: Noise, Text: fmt.Sprintf("more than %d bytes", maxNoise)}
		}
		if !ours {
			s.noise++
			s.hear(before)
			continue
		}
		words := strings.Fields(text)
		switch {
		case len(words) == 0:
		case words[0] == "fail" && len(words) > 1:
			return nil, &Error{Kind: ErrorKind(words[1]), Text: shorten(strings.Join(words[2:], " "))}
		case slices.Contains(wanted, words[0]):
			return words, nil
		}
		return nil, &Error{Kind: Noise, Text: shorten(text)}
	}
}

// hear keeps a line that the script did not write, which may explain the end of the command.
func (s *Session) hear(line string) {
	if line = strings.TrimSpace(line); line != "" {
		s.said = shorten(line)
	}
}

// Read implements io.Reader.
func (s *Session) Read(b []byte) (int, error) { return s.output.Read(b) }

// Line returns the first line of the program's standard output.
func (s *Session) Line() (string, error) {
	line, err := s.output.ReadSlice('\n')
	return string(line), err
}

// Write implements io.Writer.
func (s *Session) Write(b []byte) (int, error) { return s.stdin.Write(b) }

// CloseWrite closes the program's standard input, on which a server ends in order.
func (s *Session) CloseWrite() error { return s.stdin.Close() }

// End ends the command, and waits for it. The end of standard input ends the program too. End may
// be called repeatedly, and while Read or Write wait.
func (s *Session) End() { s.end() }

// Wait waits for the command, and returns its exit code, negative after a signal.
func (s *Session) Wait() int {
	<-s.gone
	return s.command.ProcessState.ExitCode()
}

// stop waits for the command, and kills it after stopTimeout.
func (s *Session) stop() {
	select {
	case <-s.gone:
		return
	case <-time.After(stopTimeout):
	}
	s.Kill()
	<-s.gone
}

// Kill ends the command at once. The caller must call End.
func (s *Session) Kill() { _ = s.command.Process.Kill() }

// explain returns err, or the end of the command if that is the cause.
func (s *Session) explain(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !isBrokenPipe(err) {
		return err
	}
	return &EndedError{Code: s.Wait(), Err: s.err, Said: s.said}
}
