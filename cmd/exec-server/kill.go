package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
)

// killOptions are the flags of kill.
type killOptions struct {
	where  where
	signal string
	grace  time.Duration
}

func newKillCommand() *cobra.Command {
	var o killOptions
	command := &cobra.Command{
		Use:        "kill [flags] TARGET...",
		Short:      "End processes, or send them a signal",
		GroupID:    cli.GroupLook,
		SuggestFor: []string{"stop", "end", "signal", "terminate"},
		Long: "kill ends processes with everything that they started: it sends SIGTERM, and after the time of\n" +
			"--grace SIGKILL to what is left. With --signal, or as in kill -9 and kill -HUP, it only sends\n" +
			"that signal, to the process and its group. A TARGET is a PROCESS, SESSION/PROCESS, or a SESSION with one process that runs, as\n" +
			"exec-server ps lists them; of ids the first four characters can be enough. \"exec-server sessions\n" +
			"--end\" ends everything in a session.",
		Example: "  exec-server kill --on box build\n" +
			"  exec-server kill --on box -s HUP server/1",
		ValidArgsFunction: o.where.completeTargets,
		Args:              cli.NeedArgs("name the process; exec-server ps lists them"),
		RunE: func(command *cobra.Command, args []string) error {
			if err := o.where.check(command); err != nil {
				return err
			}
			var signal os.Signal
			if command.Flags().Changed("signal") {
				var err error
				if signal, err = parseSignal(o.signal); err != nil {
					return cli.NewUsageError(err, command)
				}
			}
			if o.grace < 0 {
				return cli.NewUsageError(cli.InvalidValue("grace", o.grace.String(), "must not be negative"), command)
			}
			return o.where.look("kill", func(ctx context.Context, env *client.Environment) error {
				return each(ctx, env, args, func(target string) error { return o.end(ctx, env, target, signal) })
			})
		},
	}
	f := command.Flags()
	f.SortFlags = false
	f.StringVarP(&o.signal, "signal", "s", "", "only send this `SIGNAL`, by its name or number, such as HUP, SIGUSR1 or 9")
	f.DurationVar(&o.grace, "grace", 5*time.Second, "`TIME` between SIGTERM and SIGKILL")
	o.where.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
	return command
}

// namedSignals returns the words of a command line, with kill -9 and kill -HUP spelled in a
// way that the flag library knows.
func namedSignals(args []string) []string {
	if len(args) == 0 || args[0] != "kill" {
		return args
	}
	args = slices.Clone(args)
	for i, word := range args {
		if word == "--" {
			break
		}
		name, isFlag := strings.CutPrefix(word, "-")
		if _, notSignal := parseSignal(name); isFlag && notSignal == nil {
			args[i] = "--signal=" + name
		}
	}
	return args
}

// end ends a target, or sends it a signal if that is not nil.
func (o *killOptions) end(ctx context.Context, env *client.Environment, target string, signal os.Signal) error {
	session, process, err := resolveProcess(ctx, env, target)
	if err != nil {
		return err
	}
	if signal != nil {
		err = env.SignalIn(ctx, session.ID, process, signal)
	} else {
		err = env.TerminateIn(ctx, session.ID, process, o.grace)
	}
	if err != nil {
		return fmt.Errorf("cannot end %s: %w", cli.Printable(target), err)
	}
	return nil
}
