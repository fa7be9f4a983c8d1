// Package admin implements the commands that look after a server and its processes: ps, logs, screen,
// kill, sessions, cast, web, info and drain.
package admin

import (
	"context"
	"io"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
	"execserver/protocol"
)

// psOptions are the flags of ps.
type psOptions struct {
	machine   cli.Machine
	all, json bool
}

// PsCommand returns the command ps.
func PsCommand() *cobra.Command {
	var o psOptions
	command := &cobra.Command{
		Use:        "ps [flags]",
		Short:      "List the processes of a server",
		GroupID:    cli.GroupLook,
		SuggestFor: []string{"jobs", "processes"},
		Long: "ps lists the processes in your sessions, regardless of the program that started them. If your token\n" +
			"may observe the sessions of others, it lists their processes too. logs and kill take the\n" +
			"values of the columns SESSION and PROCESS. ps needs a server that listens.",
		Example: "  exec-server ps --on box\n" +
			"  exec-server ps --on box -a --json",
		Args: cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.machine.Check(command); err != nil {
				return err
			}
			return o.machine.Query("ps", func(ctx context.Context, env *client.Environment) error {
				return o.run(ctx, env, command.OutOrStdout())
			})
		},
	}
	f := command.Flags()
	f.BoolVarP(&o.all, "all", "a", false, "also list processes that have ended, while the server still has their output")
	f.BoolVar(&o.json, "json", false, "print a JSON array with one detailed object for each process")
	o.machine.AddFlags(f)
	return command
}

func (o *psOptions) run(ctx context.Context, env *client.Environment, out io.Writer) error {
	l, err := cli.List(ctx, env)
	if err != nil {
		return err
	}
	documents := []processJSON{}
	rows := [][]string{{"SESSION", "PROCESS", "STATE", "AGE", "COMMAND"}}
	for _, p := range l.Processes {
		if cli.HasEnded(p) && !o.all {
			continue
		}
		documents = append(documents, jsonOfProcess(l, p))
		age := ""
		if !p.Started.IsZero() {
			age = cli.ShortDuration(time.Since(p.Started))
		}
		rows = append(rows, []string{l.SessionLabel(p.Session), cli.Printable(p.ID), cli.Printable(stateOf(p)), age, cli.CommandLine(p, 0)})
	}
	if o.json {
		return cli.JSON(out, documents)
	}
	return printTable(out, rows, 3)
}

// stateOf describes the state of a process: running, exit status 1, signal: SIGKILL.
func stateOf(p client.ProcessInfo) string {
	switch {
	case p.Exit == nil:
		return string(p.State)
	case p.State == protocol.StateExited:
		return p.Exit.String() + ", output open"
	}
	return p.Exit.String()
}

// printTable prints rows in columns. On a terminal it cuts the last column so that no row wraps.
func printTable(out io.Writer, rows [][]string, right ...int) error {
	if width, terminal := cli.OnTerminal(out); terminal {
		cutLast(rows, width)
	}
	return cli.Table(out, rows, right...)
}

// cutLast cuts the last column so that the rows fit into width.
func cutLast(rows [][]string, width int) {
	used := 0
	last := len(rows[0]) - 1
	for i := range last {
		widest := 0
		for _, row := range rows {
			widest = max(widest, utf8.RuneCountInString(row[i]))
		}
		used += widest + 2
	}
	room := max(10, width-used)
	for _, row := range rows {
		if runes := []rune(row[last]); len(runes) > room {
			row[last] = string(runes[:room-1]) + "…"
		}
	}
}

// processJSON is a process in the output of ps --json. The names are those of the
// protocol.
type processJSON struct {
	SessionID       string                `json:"sessionId"`
	SessionName     string                `json:"sessionName,omitempty"`
	ProcessID       string                `json:"processId"`
	ParentProcessID string                `json:"parentProcessId,omitempty"`
	PID             int                   `json:"pid"`
	Argv            []string              `json:"argv"`
	ArgvTruncated   bool                  `json:"argvTruncated,omitempty"`
	State           protocol.ProcessState `json:"state"`
	Cwd             string                `json:"cwd,omitempty"`
	TTY             bool                  `json:"tty,omitempty"`
	StartedAtMs     int64                 `json:"startedAtMs,omitempty"`
	NextSeq         uint64                `json:"nextSeq,omitempty"`
	RetainedBytes   uint64                `json:"retainedBytes,omitempty"`
	Exit            *protocol.ExitRecord  `json:"exit,omitempty"`
}

func jsonOfProcess(l *cli.Listing, p client.ProcessInfo) processJSON {
	j := processJSON{
		SessionID: p.Session, SessionName: l.Session(p.Session).Name, ProcessID: p.ID, ParentProcessID: p.Parent,
		PID: p.PID, Argv: p.Args, ArgvTruncated: p.ArgsTruncated, State: p.State, Cwd: p.Dir, TTY: p.TTY,
		NextSeq: p.NextSeq, RetainedBytes: p.Retained,
	}
	if !p.Started.IsZero() {
		j.StartedAtMs = p.Started.UnixMilli()
	}
	if p.Exit != nil {
		j.Exit = &p.Exit.ExitRecord
	}
	return j
}
