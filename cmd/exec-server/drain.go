package main

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
	where   where
	timeout time.Duration
}

func newDrainCommand() *cobra.Command {
	var o drainOptions
	command := &cobra.Command{
		Use:     "drain {--pid PID | --url URL | --on NAME}",
		Short:   "End a server of this machine when nobody needs it any more",
		GroupID: cli.GroupServe,
		Long: "drain makes a server of this machine refuse new sessions. Clients whose link breaks can still come back\n" +
			"to theirs, and the server ends with the last of them. drain waits for that, and lists the sessions that\n" +
			"are left if it can ask the server. If drain is interrupted, the server goes on draining. SIGUSR2 to the\n" +
			"server does the same, without waiting.",
		Example: "  exec-server drain --url ws://localhost:8765 --timeout 10m\n" +
			"  exec-server drain --pid \"$(systemctl show -P MainPID exec-server)\"",
		Args: cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.where.check(command); err != nil {
				return err
			}
			switch named := o.where.url != "" || o.where.on != ""; {
			case command.Flags().Changed("pid") == named:
				return cli.NewUsageError(errors.New("name the server: --pid PID, --url URL or --on NAME"), command)
			case !named && o.pid <= 0:
				return cli.NewUsageError(cli.InvalidValue("pid", fmt.Sprint(o.pid), "must be greater than zero"), command)
			case o.timeout < 0:
				return cli.NewUsageError(cli.InvalidValue("timeout", o.timeout.String(), "must not be negative"), command)
			}
			ctx, stop := cli.UntilSignal()
			defer stop()
			err := o.drain(ctx, command.ErrOrStderr())
			if s, ok := errors.AsType[cli.SignalError](context.Cause(ctx)); ok {
				return cli.ExitCode(cli.Signaled + int(s.Signal))
			}
			return err
		},
	}
	f := command.Flags()
	f.SortFlags = false
	f.IntVar(&o.pid, "pid", 0, "drain the server that is this process (`PID`), or whose keeper it is")
	f.DurationVar(&o.timeout, "timeout", 0, "wait no longer than this `time`, and then exit with 1; the server goes on draining; 0 waits until it ends")
	o.where.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
	return command
}

// drain drains a server and waits for its end. It tells log what is left.
func (o *drainOptions) drain(ctx context.Context, log io.Writer) error {
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
	server, err := openServer(pid)
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
		return fmt.Errorf("the server with the process id %d still has sessions after %s; it goes on draining, and SIGTERM ends it with them",
			pid, o.timeout)
	case err != nil:
		return err
	}
	fmt.Fprintln(log, "the server has ended")
	return nil
}

// url returns the URL of the server that --url or --on names.
func (o *drainOptions) url() (string, error) {
	if environments.IsMachine(o.where.on) {
		return "", errors.New("drain ends a server on this machine; exec-fleet drain drains a machine of a gateway")
	}
	if o.where.url != "" {
		return o.where.url, nil
	}
	entry, err := environments.Find(o.where.on)
	switch {
	case err != nil:
		return "", err
	case entry.URL == "":
		return "", fmt.Errorf("%s names no server that listens; a program that Codex starts ends with its client", entry.Name)
	}
	return entry.URL, nil
}

// list prints the sessions that are left, if the server is one that can be asked, and that
// still runs.
func (o *drainOptions) list(ctx context.Context, out io.Writer) {
	if o.pid != 0 {
		return
	}
	env, err := o.where.open(ctx, &client.Options{Name: "exec-server-drain", NoSession: true, RecoveryTimeout: -1})
	if err != nil {
		return // it has ended, or says nothing to these credentials
	}
	defer cli.Leave(env)
	_ = new(sessionsOptions).list(ctx, env, out)
}
