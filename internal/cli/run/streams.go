package run

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"execserver/client"
	"execserver/internal/cli"
	"execserver/internal/cli/term"
)

// connect connects the command to the standard input and output of this program.
func (o *runOptions) connect(ctx context.Context, r *runner, c *client.Cmd) (err error) {
	if o.tty {
		o.onTerminal(ctx, r.env, c)
		return o.connectTerminal(r, c)
	}
	c.Stdout = &outlet{os.Stdout, r.cancel}
	c.Stderr = &outlet{os.Stderr, r.cancel}
	switch {
	case isNull(os.Stdin):
	case r.env.Info().Capabilities["processCloseStdin"]:
		c.Stdin = os.Stdin
	case cli.IsTerminal(os.Stdin):
		r.endless, err = c.StdinPipe()
	default:
		err = errors.New("this server cannot end the input of the command; add </dev/null, use -t, or update the server")
	}
	return err
}

// isNull reports whether f is closed or the null device, so that it has no input.
func isNull(f *os.File) bool {
	info, err := f.Stat()
	if err != nil {
		return true
	}
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(info, null)
}

// onTerminal makes a command run on a terminal like the local one.
func (o *runOptions) onTerminal(ctx context.Context, env *client.Environment, c *client.Cmd) {
	c.TTY = new(term.Size(int(os.Stdin.Fd())))
	if c.EnvPolicy == nil {
		c.EnvPolicy = client.InheritAll()
		if path.IsAbs(o.directory) {
			c.Env = append(c.Env, "PWD="+o.directory)
		}
	}
	own := slices.DeleteFunc(os.Environ(), func(variable string) bool { // -e replaces it
		name, _, _ := strings.Cut(variable, "=")
		return slices.ContainsFunc(o.variables, func(given string) bool { return strings.HasPrefix(given, name+"=") })
	})
	c.Env = append(terminalVariables(ctx, env, own), c.Env...)
}

// terminalVariables returns the variables for a command on a terminal: the type of the terminal,
// its colors, and the language.
func terminalVariables(ctx context.Context, env *client.Environment, own []string) (variables []string) {
	for _, variable := range own {
		name, value, _ := strings.Cut(variable, "=")
		switch {
		case value == "":
		case name == "TERM" && !knowsTerminal(ctx, env, value):
			fmt.Fprintf(os.Stderr, "the machine does not know the terminal %s; using TERM=%s\n", cli.Printable(value), commonTerminal)
			variables = append(variables, "TERM="+commonTerminal)
		case name == "TERM", name == "COLORTERM", name == "NO_COLOR", name == "LANG", name == "LANGUAGE", strings.HasPrefix(name, "LC_"):
			variables = append(variables, variable)
		}
	}
	return variables
}

// commonTerminal is a type that current terminals understand and every machine knows.
const commonTerminal = "xterm-256color"

// knowsTerminal reports whether the machine has a description of a terminal. Without a clear
// answer it returns true.
func knowsTerminal(ctx context.Context, env *client.Environment, name string) bool {
	switch name {
	case commonTerminal, "xterm", "linux", "screen", "screen-256color", "vt100", "vt220", "dumb":
		return true
	}
	if env.Info().OS == "windows" || strings.ContainsAny(name, "/\x00") {
		return true
	}
	root := env.FS("/").WithContext(ctx)
	var asked sync.WaitGroup
	var known atomic.Bool
	home := path.Join(strings.TrimPrefix(env.Info().HomeDir, "/"), ".terminfo")
	for _, dir := range []string{home, "etc/terminfo", "lib/terminfo", "usr/lib/terminfo", "usr/share/terminfo", "usr/local/share/terminfo"} {
		// The directory is the first letter on Linux, and its code on macOS.
		for _, first := range []string{name[:1], hex.EncodeToString([]byte(name[:1]))} {
			asked.Go(func() {
				if _, err := root.Stat(path.Join(dir, first, name)); !errors.Is(err, fs.ErrNotExist) {
					known.Store(true)
				}
			})
		}
	}
	asked.Wait()
	return known.Load()
}

// connectTerminal connects the local terminal to the terminal of a command.
func (o *runOptions) connectTerminal(r *runner, c *client.Cmd) error {
	if !cli.IsTerminal(os.Stdin) {
		c.Stdin = os.Stdin
		c.Stdout = &outlet{os.Stdout, r.cancel}
		return nil
	}
	if _, err := c.StdinPipe(); err != nil { // keys are written to the process directly
		return err
	}
	r.takeTerminal(o.escape)
	c.Stdout = r.screen
	return nil
}

// takeTerminal prepares the use of the local terminal.
func (r *runner) takeTerminal(escape int) {
	r.screen = &term.Screen{
		Out: &outlet{os.Stdout, r.cancel}, Size: outputSize, Dumb: dumbTerminal(),
		Written: make(chan struct{}, 1), Gate: make(chan struct{}),
	}
	r.console = term.NewConsole(r.screen)
	r.input = &term.InputForwarder{Screen: r.screen, Escapes: term.Escapes{Char: escape}, Link: r.link}
}

// outputSize returns the size of the terminal on standard output, or zeros.
func outputSize() (rows, cols int) {
	size := term.Size(int(os.Stdout.Fd()))
	return int(size.Rows), int(size.Cols)
}

// dumbTerminal reports whether the terminal understands no escape sequences.
func dumbTerminal() bool {
	name := os.Getenv("TERM")
	return name == "" || name == "dumb" || strings.HasPrefix(name, "vt52")
}

// errBrokenPipe is the cause with which run ends a command after its output pipe has closed.
var errBrokenPipe = errors.New("broken pipe")

// outlet writes output to a file, and ends the command when the reader is gone.
type outlet struct {
	file   *os.File
	cancel context.CancelCauseFunc
}

// Write implements io.Writer.
func (o *outlet) Write(b []byte) (int, error) {
	n, err := o.file.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		o.cancel(errBrokenPipe)
	}
	return n, err
}
