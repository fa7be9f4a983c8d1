// Package bootstrap starts this program on another machine over any command whose standard
// input and output lead to a POSIX shell there, such as ssh, and copies it there first if it
// is missing. Nothing but sh has to be on that machine, and the tools of every system.
//
// [Start] is the whole of it.
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

// Options say what to start, and where. Version, Args and Silent must be set.
type Options struct {
	// Releases are directories that may have programs for other kinds of machines, named
	// exec-server-OS-ARCH. The first that has one for a kind of machine counts.
	Releases []string

	// Version is what such a program must say about itself.
	Version string

	// Args are the arguments with which it is started.
	Args []string

	// Dir is the directory for programs on the other machine: an absolute path, or one
	// below ~/. By default it is exec-server in the user's cache directory there.
	Dir string

	// Typed says that the command reads shell commands from its standard input alone.
	// Otherwise one is appended to its arguments as well.
	Typed bool

	// Silent is called, in a goroutine of its own, if no shell has answered after Silence.
	// Start goes on waiting.
	Silence time.Duration
	Silent  func()

	// Progress is called while a program is copied, with the bytes that have arrived so far and
	// all of them, at first with none. It may be nil.
	Progress func(kind Kind, arrived, size int64)
}

// Session is a program that runs on another machine. Read reads its standard output. Write
// and CloseWrite are for its standard input. Read and Write may be called at the same time.
// The caller must call End.
type Session struct {
	command *exec.Cmd
	stdin   io.WriteCloser
	stdout  *os.File
	output  *bufio.Reader
	nonce   string
	noise   int    // bytes of lines that are not ours
	said    string // the last of these lines
	gone    chan struct{}
	err     error // how the command ended; set before gone is closed
	end     func()
}

// maxNoise bounds what a login may write to standard output before the program starts, and
// everything else that is not the program's.
const maxNoise = 64 << 10

// stopTimeout is how long the command may take to end by itself when it was asked to.
const stopTimeout = 2 * time.Second

// Start starts a program on another machine. command leads there; Start changes it and
// starts it, and its standard error is the caller's business. ctx bounds the start, not
// the session. The error is an *Error if the other machine is the reason, and an *EndedError
// if the command ended too early.
func Start(ctx context.Context, command *exec.Cmd, opts *Options) (*Session, error) {
	s := &Session{command: command, nonce: rand.Text(), gone: make(chan struct{})}
	loader := loader(s.nonce)
	if !opts.Typed {
		command.Args = append(command.Args, loader)
	}
	if err := s.start(); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, s.kill)
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

// loader returns a command for any shell, also csh and fish, that has sh read scripts from
// standard input. Each ends with the nonce, so that half of one does nothing. read consumes
// no byte too many, so what follows a script is left for it.
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

// script returns bootstrap.sh with what it needs to know.
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

// run has the other machine run a script.
func (s *Session) run(script string) error { return s.tell(script + s.nonce + "\n") }

// tell writes to the command. If that has ended, tell hears its last words.
func (s *Session) tell(text string) error {
	_, err := io.WriteString(s.stdin, text)
	if err != nil && isBrokenPipe(err) {
		_ = s.stdout.SetReadDeadline(time.Now().Add(stopTimeout)) // it may only have closed its input
		for unread := error(nil); unread == nil; {
			_, unread = s.answer("ready")
		}
	}
	return err
}

// compact returns a script without comments and indents.
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

// bootstrap talks to the script until it has become the program.
func (s *Session) bootstrap(loader string, opts *Options) error {
	// A startup file of the account may have started another shell, which reads its commands
	// from standard input, or may read standard input itself: then the loader of the command
	// line does not run, or a line is lost. So the loader is the first line as well, and
	// nothing else is sent before one has answered. The loader of the command line takes it
	// for a script, and starts once more.
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

// answer returns the words of the next line that the script has written, which begins with
// one of those wanted.
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

// hear remembers a line that is not ours, which may say why the command ends.
func (s *Session) hear(line string) {
	if line = strings.TrimSpace(line); line != "" {
		s.said = shorten(line)
	}
}

// Read implements io.Reader.
func (s *Session) Read(b []byte) (int, error) { return s.output.Read(b) }

// Write implements io.Writer.
func (s *Session) Write(b []byte) (int, error) { return s.stdin.Write(b) }

// CloseWrite ends the program's standard input, on which a server ends in order.
func (s *Session) CloseWrite() error { return s.stdin.Close() }

// End ends the command, and waits for it. The end of its standard input tells the program
// to end, too. It may be called any number of times, also while Read or Write wait.
func (s *Session) End() { s.end() }

// Wait waits until the command has ended, and returns its exit code: that of a signal is
// negative.
func (s *Session) Wait() int {
	<-s.gone
	return s.command.ProcessState.ExitCode()
}

// stop waits for the command, and kills it if that takes too long.
func (s *Session) stop() {
	select {
	case <-s.gone:
		return
	case <-time.After(stopTimeout):
	}
	s.kill()
	<-s.gone
}

// kill ends the command at once.
func (s *Session) kill() { _ = s.command.Process.Kill() }

// explain returns err, or how the command ended if that is the reason.
func (s *Session) explain(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !isBrokenPipe(err) {
		return err
	}
	return &EndedError{Code: s.Wait(), Err: s.err, Said: s.said}
}
