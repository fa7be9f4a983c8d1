package admin

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
	machine cli.Machine
	signal  string
	grace   time.Duration
}

// KillCommand returns the command kill.
func KillCommand() *cobra.Command {
	var o killOptions
	command := &cobra.Command{
		Use:        "kill [flags] TARGET...",
		Short:      "End processes, or send them a signal",
		GroupID:    cli.GroupLook,
		SuggestFor: []string{"stop", "end", "signal", "terminate"},
		Long: "kill sends SIGTERM to a process and its descendants. After the time of --grace it kills those that\n" +
			"remain. With --signal, kill -9 or kill -HUP it only sends that signal, to the process and its group.\n\n" +
			"TARGET is a PROCESS, SESSION/PROCESS, or a SESSION with one running process. exec-server ps lists\n" +
			"them. The first four characters of an id can be enough. \"exec-server sessions --end\" ends everything\n" +
			"in a session.",
		Example: "  exec-server kill --on box build\n" +
			"  exec-server kill --on box -s HUP server/1",
		ValidArgsFunction: o.machine.CompleteTargets,
		Args:              cli.NeedArgs("name the process; exec-server ps lists them"),
		RunE: func(command *cobra.Command, args []string) error {
			if err := o.machine.Check(command); err != nil {
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
			return o.machine.Query("kill", func(ctx context.Context, env *client.Environment) error {
				return cli.Each(ctx, env, args, func(target string) error { return o.end(ctx, env, target, signal) })
			})
		},
	}
	f := command.Flags()
	f.StringVarP(&o.signal, "signal", "s", "", "only send this `SIGNAL`, by its name or number, such as HUP, SIGUSR1 or 9")
	f.DurationVar(&o.grace, "grace", 5*time.Second, "`TIME` between SIGTERM and SIGKILL")
	o.machine.AddFlags(f)
	return command
}

// ExpandSignals returns a command line of kill in which -9 and -HUP have the form --signal=NAME,
// which the flag library understands.
func ExpandSignals(args []string) []string {
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

// end ends a target, or sends it signal unless that is nil.
func (o *killOptions) end(ctx context.Context, env *client.Environment, target string, signal os.Signal) error {
	session, process, err := cli.ResolveProcess(ctx, env, target)
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
