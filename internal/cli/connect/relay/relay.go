// Package relay is the end of connect on the other machine: it finds or starts the server of this
// user there, and passes the bytes of one link to its unix socket. The server outlives the link,
// so that connect can resume its stream over another one.
//
// [Run] is the entry point. The files of a server are in a directory that only this user can
// write (directory_unix.go):
//
//	lock     is held by who starts or ends a server
//	socket   is where the server listens
//	program  says which program it was started from
//	log      is what the server wrote to standard error
package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"execserver/internal/cli"
)

// Options are the options of Run.
type Options struct {
	// Dir is the directory for the files of all servers: absolute or below ~/. The default is
	// exec-server in the user's cache directory.
	Dir string
	// Start says to start a server if there is none.
	Start bool
	// Upgrade says to end a server of another program, and what it runs, first.
	Upgrade bool
	// Flags are those of the server. Servers with other flags are not the same.
	Flags []string
}

// Args returns the command line of this program for Run.
func (o *Options) Args() []string {
	args := []string{"relay"}
	if o.Dir != "" {
		args = append(args, "--dir", o.Dir)
	}
	if o.Start {
		args = append(args, "--start")
	}
	if o.Upgrade {
		args = append(args, "--upgrade")
	}
	return append(append(args, "--"), o.Flags...)
}

// A relay first prints a line: this prefix, an Answer, and a text.
const prefix = "exec-server relay: "

// Answer is what a relay says before it passes bytes.
type Answer string

// The answers of a relay.
const (
	Ready  Answer = "ready"
	Gone   Answer = "gone"   // no server runs, and the relay must not start one
	Failed Answer = "failed" // for the reason in the text
)

// Parse returns what the first line of a relay says.
func Parse(line string) (answer Answer, text string, ok bool) {
	line, ok = strings.CutPrefix(strings.TrimSpace(line), prefix)
	word, text, _ := strings.Cut(line, " ")
	return Answer(word), text, ok
}

// ErrGone means that no server runs.
var ErrGone = errors.New("the server has ended")

// startTimeout bounds how long a relay waits for a server, and for another relay that starts one. A
// busy machine takes seconds.
const startTimeout = time.Minute

// Command returns the command relay, which connect starts on the other machine. version is that of
// this program.
func Command(version string) *cobra.Command {
	var o Options
	command := &cobra.Command{
		Use:    "relay [flags] [-- FLAG...]",
		Short:  "Pass bytes between standard input and output and the server of this user",
		Long:   "relay is the end of connect on the other machine. It is not for use by hand.",
		Hidden: true,
		RunE: func(command *cobra.Command, args []string) error {
			o.Flags = args
			cli.IgnoreBrokenPipes()
			ctx, stop := cli.UntilSignal()
			defer stop()
			return Run(ctx, command.InOrStdin(), command.OutOrStdout(), version, &o)
		},
	}
	f := command.Flags()
	f.StringVar(&o.Dir, "dir", "", "keep the files of servers in this `DIR`, absolute or below ~/")
	f.BoolVar(&o.Start, "start", false, "start a server if there is none")
	f.BoolVar(&o.Upgrade, "upgrade", false, "end a server of another program first")
	return command
}

// Run connects to a server, answers, and passes bytes until either side ends.
func Run(ctx context.Context, in io.Reader, out io.Writer, version string, opts *Options) error {
	starting, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("this took more than %s", startTimeout))
	server, err := open(starting, version, opts)
	cancel()
	answer, text := Ready, ""
	switch {
	case errors.Is(err, ErrGone):
		answer = Gone
	case err != nil:
		answer, text = Failed, strings.Join(strings.Fields(err.Error()), " ")
	}
	if _, err := fmt.Fprintf(out, "%s%s %s\n", prefix, answer, text); err != nil {
		return err
	}
	if answer != Ready {
		return cli.ExitCode(1)
	}
	defer server.Close()
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	go func() { // ends with the program
		_, _ = copyBytes(server, in)
		// The server closes its end then. If it does not, nothing is left to wait for.
		_ = server.CloseWrite()
		time.AfterFunc(endTimeout, func() { _ = server.Close() })
	}()
	_, _ = copyBytes(out, server) // the ends of the stream notice by themselves what is missing
	return nil
}

// endTimeout is how long the server may take to close its end.
const endTimeout = 2 * time.Second

func copyBytes(to io.Writer, from io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 128<<10))
}

// say prints a line for the user of connect.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
