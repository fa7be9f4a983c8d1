package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/client/environments"
	"execserver/internal/cli"
)

// drainOptions are the flags of drain.
type drainOptions struct {
	pid     int
	machine cli.Machine
	timeout time.Duration
}

// DrainCommand returns the command drain. newRoot returns the whole command line, with which drain
// recognizes the process of a server.
func DrainCommand(newRoot func() *cobra.Command) *cobra.Command {
	var o drainOptions
	command := &cobra.Command{
		Use:     "drain {--pid PID | --url URL | --on NAME}",
		Short:   "Stop a server of this machine when its sessions have ended",
		GroupID: cli.GroupServe,
		Long: "A server that drains refuses new sessions. Clients whose connection breaks can still resume theirs.\n" +
			"The server ends with its last session.\n\n" +
			"drain waits for the end of the server. It lists the remaining sessions if it can ask the server. If\n" +
			"drain is interrupted, the server continues to drain. SIGUSR2 makes a server drain too, without\n" +
			"waiting.",
		Example: "  exec-server drain --url ws://localhost:8765 --timeout 10m\n" +
			"  exec-server drain --pid \"$(systemctl show -P MainPID exec-server)\"",
		Args: cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.machine.Check(command); err != nil {
				return err
			}
			switch named := o.machine.URL != "" || o.machine.On != ""; {
			case command.Flags().Changed("pid") == named:
				return cli.NewUsageError(errors.New("name the server: --pid PID, --url URL or --on NAME"), command)
			case !named && o.pid <= 0:
				return cli.NewUsageError(cli.InvalidValue("pid", fmt.Sprint(o.pid), "must be greater than zero"), command)
			case o.timeout < 0:
				return cli.NewUsageError(cli.InvalidValue("timeout", o.timeout.String(), "must not be negative"), command)
			}
			ctx, stop := cli.UntilSignal()
			defer stop()
			err := o.drain(ctx, newRoot, command.ErrOrStderr())
			if s, ok := errors.AsType[cli.SignalError](context.Cause(ctx)); ok {
				return cli.ExitCode(cli.Signaled + int(s.Signal))
			}
			return err
		},
	}
	f := command.Flags()
	f.IntVar(&o.pid, "pid", 0, "drain the server with this process id (`PID`), or its supervisor")
	f.DurationVar(&o.timeout, "timeout", 0, "exit with 1 after this `time`, while the server continues to drain; 0 waits until it ends")
	o.machine.AddFlags(f)
	return command
}

// drain drains a server and waits for its end. It writes the remaining sessions to log.
func (o *drainOptions) drain(ctx context.Context, newRoot func() *cobra.Command, log io.Writer) error {
	pid := o.pid
	if pid == 0 {
		url, err := o.url()
		if err == nil {
			pid, err = serverOf(ctx, url)
		}
		if err != nil {
			return err
		}
	}
	server, err := openServer(pid, newRoot())
	switch {
	case err != nil && o.pid == 0: // such as systemd, which has made the socket
		return fmt.Errorf("drain the process %d, which listens there: %w; name the server with --pid", pid, err)
	case err != nil:
		return fmt.Errorf("drain the process %d: %w", pid, err)
	}
	defer server.close()
	if err := server.drain(); err != nil {
		return fmt.Errorf("drain the process %d: %w", pid, err)
	}
	fmt.Fprintf(log, "the server with the process id %d takes no new sessions, and ends with its last one\n", pid)
	waiting := ctx
	if o.timeout > 0 {
		timed, cancel := context.WithTimeout(ctx, o.timeout)
		defer cancel()
		waiting = timed
	} else {
		o.list(ctx, log)
	}
	switch err := server.wait(waiting); {
	case errors.Is(err, context.DeadlineExceeded):
		o.list(ctx, log)
		return fmt.Errorf("the server with the process id %d still has sessions after %s; it continues to drain, and SIGTERM ends it with them",
			pid, o.timeout)
	case err != nil:
		return err
	}
	fmt.Fprintln(log, "the server has ended")
	return nil
}

// url returns the URL of the server that --url or --on names.
func (o *drainOptions) url() (string, error) {
	if environments.IsMachine(o.machine.On) {
		return "", errors.New("drain ends a server on this machine; exec-fleet drain drains a machine of a gateway")
	}
	if o.machine.URL != "" {
		return o.machine.URL, nil
	}
	entry, err := environments.Find(o.machine.On)
	switch {
	case err != nil:
		return "", err
	case entry.URL == "":
		return "", fmt.Errorf("%s is not a listening server; a program that Codex starts ends with its client", entry.Name)
	}
	return entry.URL, nil
}

// list prints the remaining sessions, if the server still runs and can be asked.
func (o *drainOptions) list(ctx context.Context, out io.Writer) {
	if o.pid != 0 {
		return
	}
	env, err := o.machine.Open(ctx, &client.Options{Name: "exec-server-drain", NoSession: true, RecoveryTimeout: -1})
	if err != nil {
		return // it has ended, or refuses these credentials
	}
	defer cli.Leave(env)
	_ = new(sessionsOptions).list(ctx, env, out)
}
