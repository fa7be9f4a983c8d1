package main

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
	where     where
	all, json bool
}

func newProcessesCommand() *cobra.Command {
	var o psOptions
	command := &cobra.Command{
		Use:        "ps [flags]",
		Short:      "List what runs at a server",
		GroupID:    cli.GroupLook,
		SuggestFor: []string{"jobs", "processes"},
		Long: "ps lists the processes that a server runs in your sessions, whichever program started them. If your\n" +
			"token may observe the sessions of others, it lists theirs too. The columns SESSION and PROCESS are\n" +
			"what logs and kill take, as PROCESS or SESSION/PROCESS.",
		Example: "  exec-server ps --on box\n" +
			"  exec-server ps --on box -a --json",
		Args: cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.where.check(command); err != nil {
				return err
			}
			return o.where.look("ps", func(ctx context.Context, env *client.Environment) error {
				return o.run(ctx, env, command.OutOrStdout())
			})
		},
	}
	f := command.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.all, "all", "a", false, "list processes that have ended too, while the server still has their output")
	f.BoolVar(&o.json, "json", false, "print a JSON array with one object for each process, with all that is known about it")
	o.where.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
	return command
}

func (o *psOptions) run(ctx context.Context, env *client.Environment, out io.Writer) error {
	l, err := listAll(ctx, env)
	if err != nil {
		return err
	}
	width, terminal := cli.OnTerminal(out)
	documents := []processJSON{}
	rows := [][]string{{"SESSION", "PROCESS", "STATE", "AGE", "COMMAND"}}
	for _, p := range l.processes {
		if hasEnded(p) && !o.all {
			continue
		}
		documents = append(documents, l.processJSON(p))
		age := ""
		if !p.Started.IsZero() {
			age = cli.ShortDuration(time.Since(p.Started))
		}
		rows = append(rows, []string{l.nameOf(p.Session), cli.Printable(p.ID), cli.Printable(stateOf(p)), age, commandLine(p, 0)})
	}
	if o.json {
		return cli.JSON(out, documents)
	}
	if terminal {
		cutLast(rows, width)
	}
	return cli.Table(out, rows, 3)
}

// stateOf says how a process is: running, exit status 1, signal: SIGKILL.
func stateOf(p client.ProcessInfo) string {
	switch {
	case p.Exit == nil:
		return string(p.State)
	case p.State == protocol.StateExited:
		return p.Exit.String() + ", output open"
	}
	return p.Exit.String()
}

// cutLast cuts the last column so that rows fit into a width.
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

func (l *listed) processJSON(p client.ProcessInfo) processJSON {
	j := processJSON{
		SessionID: p.Session, SessionName: l.session(p.Session).Name, ProcessID: p.ID, ParentProcessID: p.Parent,
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

// session returns a session, or the zero value if it began after the list was made.
func (l *listed) session(id string) client.SessionInfo {
	for _, s := range l.sessions {
		if s.ID == id {
			return s
		}
	}
	return client.SessionInfo{ID: id}
}
