package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"execserver/client"
	"execserver/protocol"
)

// topOptions are the flags of top.
type topOptions struct {
	where    where
	interval time.Duration
	sort     string
}

// minInterval bounds how often top asks the server, which may have to search all its
// processes for an answer.
const minInterval = 500 * time.Millisecond

func newTopCommand() *cobra.Command {
	var o topOptions
	command := &cobra.Command{
		Use:     "top [flags]",
		Short:   "Watch what runs at a server",
		GroupID: groupLook,
		Long: "top shows the processes that a server runs in your sessions, or in all sessions if your token may\n" +
			"observe them, and what they use with everything that they have started. CPU is in percent of one\n" +
			"processor, MEMORY what they use now, and PROCS how many processes of the system they are. Where\n" +
			"standard output is no terminal, top prints the table once.\n\n" +
			"Keys: up and down choose a process; s sorts by the next column; a attaches to the process, with\n" +
			"which top ends; w watches it, as attach --read-only does; k ends it, if you confirm with y; q\n" +
			"leaves.",
		Example: "  exec-server top --on box\n" +
			"  exec-server top --on box --sort memory | head",
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			err := o.where.check(command)
			switch {
			case err != nil:
				return err
			case o.interval < minInterval:
				return &usageError{invalidValue("interval", o.interval.String(), "must be at least "+minInterval.String()), command}
			case !slices.Contains(topOrders, o.sort):
				return &usageError{invalidValue("sort", o.sort, "expected cpu, memory, age or session"), command}
			}
			return o.run(command.OutOrStdout())
		},
	}
	f := command.Flags()
	f.SortFlags = false
	f.DurationVar(&o.interval, "interval", 2*time.Second, "ask the server every `TIME`")
	f.StringVar(&o.sort, "sort", "cpu", "sort by `COLUMN`: cpu, memory, age or session")
	o.where.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
	return command
}

// topOrders are the columns by which top sorts.
var topOrders = []string{"cpu", "memory", "age", "session"}

func (o *topOptions) run(out io.Writer) error {
	_, shows := onTerminal(out)
	shows = shows && term.IsTerminal(int(os.Stdin.Fd()))
	var next []string // arguments of attach
	err := o.where.look("top", func(ctx context.Context, env *client.Environment) (err error) {
		if !shows {
			return o.print(ctx, env, out)
		}
		next, err = newTopScreen(o, env).run(ctx)
		return err
	})
	if err != nil || next == nil {
		return err
	}
	attach := newAttachCommand()
	attach.SilenceErrors, attach.SilenceUsage = true, true
	attach.SetArgs(append(next, o.where.flags()...))
	return attach.Execute()
}

// flags returns the flags that name the same machine.
func (w *where) flags() (args []string) {
	for _, flag := range w.given() {
		args = append(args, flag[0]+"="+flag[1])
	}
	return args
}

// print prints the table once.
func (o *topOptions) print(ctx context.Context, env *client.Environment, out io.Writer) error {
	before, err := takeSample(ctx, env)
	if err != nil {
		return err
	}
	select {
	case <-time.After(o.interval):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	now, err := takeSample(ctx, env)
	if err != nil {
		return err
	}
	rows := [][]string{topHeader}
	for _, p := range now.rows(before, o.sort) {
		rows = append(rows, p.cells(now))
	}
	return printTable(out, rows, 3, 4, 5, 6)
}

// sample is what runs at a server at one moment.
type sample struct {
	at     time.Time
	listed *listed
	used   map[topKey]client.ProcessUsage
	knows  bool // the server tells what processes use
}

// topKey names a process.
type topKey struct{ session, process string }

func takeSample(ctx context.Context, env *client.Environment) (*sample, error) {
	l, err := listAll(ctx, env)
	if err != nil {
		return nil, err
	}
	s := &sample{at: time.Now(), listed: l, used: make(map[topKey]client.ProcessUsage), knows: true}
	used, err := env.AllUsage(ctx)
	switch {
	case errors.As(err, new(*client.UnsupportedError)):
		s.knows = false
	case err != nil && !errors.Is(err, client.ErrTruncated):
		return nil, fmt.Errorf("cannot ask what processes use: %w", err)
	}
	for _, u := range used {
		s.used[topKey{u.Session, u.ID}] = u
	}
	return s, nil
}

// topRow is one process in the table.
type topRow struct {
	key    topKey
	info   client.ProcessInfo
	used   client.ProcessUsage
	cpu    float64 // percent of one processor
	known  bool    // used is known
	cpuNow bool    // cpu is known
}

// rows returns the processes that run or have left something running, in an order. The
// time between the samples makes percents of processor times; before may be nil.
func (s *sample) rows(before *sample, order string) (rows []topRow) {
	for _, p := range s.listed.processes {
		row := topRow{key: topKey{p.Session, p.ID}, info: p}
		row.used, row.known = s.used[row.key]
		if hasEnded(p) && !row.known || p.State == protocol.StateBackground && s.knows {
			continue // what is left of a closed process counts in its row
		}
		if before != nil && row.known {
			earlier, known := before.used[row.key]
			if row.cpuNow = known; known {
				row.cpu = max(0, 100*float64(row.used.CPU-earlier.CPU)/float64(s.at.Sub(before.at)))
			}
		}
		rows = append(rows, row)
	}
	slices.SortStableFunc(rows, func(a, b topRow) int {
		switch order {
		case "cpu":
			return cmp.Compare(b.cpu, a.cpu)
		case "memory":
			return cmp.Compare(b.used.Memory, a.used.Memory)
		case "age":
			return a.info.Started.Compare(b.info.Started)
		}
		return 0 // as the server lists them
	})
	return rows
}

var topHeader = []string{"SESSION", "PROCESS", "STATE", "CPU", "MEMORY", "PROCS", "AGE", "COMMAND"}

// cells returns the row of the table.
func (r topRow) cells(s *sample) []string {
	cpu, memory, count, age := "-", "-", "-", ""
	if r.known {
		memory, count = size(r.used.Memory), fmt.Sprint(r.used.Processes)
	}
	if r.cpuNow {
		cpu = fmt.Sprintf("%.1f", r.cpu)
	}
	if !r.info.Started.IsZero() {
		age = shortDuration(s.at.Sub(r.info.Started))
	}
	return []string{
		s.listed.nameOf(r.key.session), printable(r.key.process), printable(stateOf(r.info)), cpu, memory, count, age, commandLine(r.info, 0),
	}
}
