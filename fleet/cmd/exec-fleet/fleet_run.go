package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/fleet/internal/fleet"
	"execserver/internal/cli"
)

// fleetRun is one command on many machines.
type fleetRun struct {
	at       fleetAt
	labels   []string
	machines []string
	parallel int
	timeout  time.Duration

	out, errOut sync.Mutex // a line at a time goes to each stream
}

// stragglerInterval is how often fleet run tells which machines it still waits for.
const stragglerInterval = 10 * time.Second

func newRunCommand() *cobra.Command {
	var o fleetRun
	command := &cobra.Command{
		Use: "run [flags] -- COMMAND [ARG...]", Short: "Run a command on many machines at once",
		Long: "run runs a command on all machines, or on those with a label or a name. It prints each line of\n" +
			"output after the name of the machine. At the end it prints how many machines succeeded, and which\n" +
			"failed. The exit code is 0 if all succeeded.\n\n" +
			"run skips machines that drain. It waits for machines that are lost for a while. It runs nothing\n" +
			"twice.",
		Example: "  exec-fleet run --gateway wss://gateway:8765 --label gpu=h100 --parallel 50 -- nvidia-smi -L\n" +
			"  exec-fleet run --machine box-7 --machine box-8 -- uname -r",
		Args: commandAfterDash,
	}
	f := command.Flags()
	f.SetInterspersed(false)
	f.StringArrayVar(&o.labels, "label", nil, "run on machines with this label, `KEY=VALUE`, or KEY for any value; may be repeated")
	f.StringArrayVar(&o.machines, "machine", nil, "run on the machine of this `NAME`; may be repeated")
	f.IntVar(&o.parallel, "parallel", 20, "run on up to this `number` of machines at the same time")
	f.DurationVar(&o.timeout, "timeout", 0, "end the command on a machine after this `time`; 0 waits for ever")
	return subcommand(command, &o.at, func(ctx context.Context, args []string) error {
		if o.parallel < 1 {
			return cli.NewUsageError(cli.InvalidValue("parallel", fmt.Sprint(o.parallel), "must be at least 1"), command)
		}
		return o.run(ctx, args)
	})
}

// commandAfterDash lets nothing stand before --: the name of a machine there would be the
// program to run on all machines.
func commandAfterDash(command *cobra.Command, args []string) error {
	switch dash := command.ArgsLenAtDash(); {
	case dash > 0 || dash < 0 && len(args) > 0:
		return cli.NewUsageError(fmt.Errorf("unexpected %q: choose machines with --label or --machine; the command comes after --", args[0]), command)
	case len(args) == 0:
		return cli.NewUsageError(errors.New("name the command after --"), command)
	}
	return nil
}

// outcome is how a command ended on a machine.
type outcome struct {
	machine string
	err     error
}

func (o *fleetRun) run(ctx context.Context, args []string) error {
	machines, err := o.choose(ctx)
	if err != nil {
		return err
	}
	places := make(chan struct{}, o.parallel)
	outcomes := make(chan outcome)
	for _, m := range machines {
		go func() { // ends with ctx, or its machine
			select {
			case places <- struct{}{}:
				defer func() { <-places }()
				outcomes <- outcome{m.Name, o.runOn(ctx, m.Name, args)}
			case <-ctx.Done():
				outcomes <- outcome{m.Name, context.Cause(ctx)}
			}
		}()
	}
	return o.await(machines, outcomes)
}

// choose returns the machines to run on.
func (o *fleetRun) choose(ctx context.Context) ([]fleet.Member, error) {
	machines, err := o.at.list(ctx, o.labels)
	if err != nil {
		return nil, err
	}
	var unknown []string
	for _, name := range o.machines {
		if !slices.ContainsFunc(machines, func(m fleet.Member) bool { return m.Name == name }) {
			unknown = append(unknown, cli.Printable(name))
		}
	}
	switch {
	case len(unknown) > 0 && len(o.labels) > 0:
		return nil, fmt.Errorf("no machine with these labels has the name %s; %s", strings.Join(unknown, ", "), cli.ToList)
	case len(unknown) > 0:
		return nil, fmt.Errorf("there is no machine %s; %s", strings.Join(unknown, ", "), cli.ToList)
	}
	draining := make(map[string]bool)
	machines = slices.DeleteFunc(machines, func(m fleet.Member) bool {
		if len(o.machines) > 0 && !slices.Contains(o.machines, m.Name) {
			return true
		}
		if m.Load.Draining {
			draining[m.Name] = true
		}
		return m.Load.Draining
	})
	if len(draining) > 0 {
		fmt.Fprintf(os.Stderr, "left out, because they drain: %s\n", some(draining))
	}
	if len(machines) == 0 {
		return nil, errors.New("no machine matches that takes new commands; " + cli.ToList)
	}
	return machines, nil
}

// await collects the outcomes, and tells how it went.
func (o *fleetRun) await(machines []fleet.Member, outcomes <-chan outcome) error {
	waiting := make(map[string]bool, len(machines))
	for _, m := range machines {
		waiting[m.Name] = true
	}
	var failed []outcome
	stragglers := time.NewTicker(stragglerInterval)
	defer stragglers.Stop()
	for len(waiting) > 0 {
		select {
		case one := <-outcomes:
			delete(waiting, one.machine)
			if one.err != nil {
				failed = append(failed, one)
			}
		case <-stragglers.C:
			fmt.Fprintf(os.Stderr, "waiting for %d of %d: %s\n", len(waiting), len(machines), some(waiting))
		}
	}
	slices.SortFunc(failed, func(a, b outcome) int { return strings.Compare(a.machine, b.machine) })
	for _, one := range failed {
		fmt.Fprintf(os.Stderr, "%s: %s\n", cli.Printable(one.machine), cli.Printable(cli.ErrorLine(one.err)))
	}
	fmt.Fprintf(os.Stderr, "%d of %d machines succeeded\n", len(machines)-len(failed), len(machines))
	if len(failed) > 0 {
		return cli.ExitCode(1)
	}
	return nil
}

// some returns a few of many names.
func some(names map[string]bool) string {
	const few = 5
	var list []string
	for name := range names {
		list = append(list, cli.Printable(name))
	}
	slices.Sort(list)
	if len(list) > few {
		list = append(list[:few], "…")
	}
	return strings.Join(list, ", ")
}

// runOn runs the command on one machine.
func (o *fleetRun) runOn(ctx context.Context, machine string, args []string) error {
	env, err := client.Dial(ctx, o.at.machineURL(machine), &client.Options{Name: "exec-server-fleet-run", TokenFile: o.at.tokenFile, ServerUser: o.at.serverUser})
	if err != nil {
		return err
	}
	defer cli.Leave(env)
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("it took longer than %s", o.timeout))
		defer cancel()
	}
	command := env.Command(ctx, args[0], args[1:]...)
	out := newPrefixed(os.Stdout, machine, &o.out)
	errOut := newPrefixed(os.Stderr, machine, &o.errOut)
	command.Stdout, command.Stderr = out, errOut
	err = command.Run()
	return errors.Join(err, out.flush(), errOut.flush())
}

// maxPrefixed is how much of a line is kept until it ends.
const maxPrefixed = 64 << 10

// prefixed writes whole lines behind a prefix. It is used by one goroutine at a time.
type prefixed struct {
	to       io.Writer
	terminal bool // which a machine must not control, nor speak for another one on it
	prefix   string
	turn     *sync.Mutex
	line     []byte // without its end
}

func newPrefixed(to io.Writer, machine string, turn *sync.Mutex) *prefixed {
	_, terminal := cli.OnTerminal(to)
	return &prefixed{to: to, terminal: terminal, prefix: cli.Printable(machine) + ": ", turn: turn}
}

// Write implements io.Writer.
func (p *prefixed) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		part, rest, ended := bytes.Cut(b, []byte("\n"))
		p.line, b = append(p.line, part...), rest
		if !ended && len(p.line) < maxPrefixed {
			return n, nil
		}
		if err := p.flushLine(); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// flush writes a line that has no end.
func (p *prefixed) flush() error {
	if len(p.line) == 0 {
		return nil
	}
	return p.flushLine()
}

func (p *prefixed) flushLine() error {
	line := string(p.line)
	p.line = p.line[:0]
	if p.terminal {
		line = printableOutput(line)
	}
	p.turn.Lock()
	defer p.turn.Unlock()
	_, err := io.WriteString(p.to, p.prefix+line+"\n")
	return err
}

// printableOutput is like cli.Printable for a line of output, which may have tabs and end as on
// Windows.
func printableOutput(line string) string {
	parts := strings.Split(strings.TrimSuffix(line, "\r"), "\t")
	for i, part := range parts {
		parts[i] = cli.Printable(part)
	}
	return strings.Join(parts, "\t")
}
