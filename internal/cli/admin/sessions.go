package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
	"execserver/protocol"
)

// sessionsOptions are the flags of sessions.
type sessionsOptions struct {
	machine cli.Machine
	end     []string
	json    bool
}

// SessionsCommand returns the command sessions.
func SessionsCommand() *cobra.Command {
	var o sessionsOptions
	command := &cobra.Command{
		Use:     "sessions [flags]",
		Short:   "List or end the sessions of a server",
		GroupID: cli.GroupLook,
		Long: "sessions lists your sessions: those of the user or token that you connect with. If your token may\n" +
			"observe the sessions of others, it lists them too. A session has the processes of one program, and\n" +
			"outlives its connection for a while.",
		Example: "  exec-server sessions --on box\n" +
			"  exec-server sessions --on box --end build",
		Args: cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.machine.Check(command); err != nil {
				return err
			}
			if len(o.end) > 0 {
				return o.machine.Query("sessions", func(ctx context.Context, env *client.Environment) error {
					return cli.Each(ctx, env, o.end, func(target string) error { return endSession(ctx, env, target) })
				})
			}
			return o.machine.Query("sessions", func(ctx context.Context, env *client.Environment) error {
				return o.list(ctx, env, command.OutOrStdout())
			})
		},
	}
	f := command.Flags()
	f.StringArrayVar(&o.end, "end", nil, "end `SESSION` (a name, an id, or the first characters of an id) and all its processes; may be repeated")
	f.BoolVar(&o.json, "json", false, "print a JSON array with one object for each session")
	o.machine.AddFlags(f)
	return command
}

// endSession ends a session of the same user.
func endSession(ctx context.Context, env *client.Environment, target string) error {
	l, err := cli.List(ctx, env)
	if err != nil {
		return err
	}
	session, process, err := l.Find(target)
	if errors.Is(err, cli.ErrNoTarget) {
		return fmt.Errorf("there is no session %s; exec-server sessions lists them", cli.Printable(target))
	}
	if err != nil {
		return err
	}
	if process != "" {
		return fmt.Errorf("%s is a process, not a session; end it with exec-server kill", cli.Printable(target))
	}
	if err := env.EndSession(ctx, session); err != nil {
		return fmt.Errorf("cannot end the session %s: %w", cli.Printable(target), err)
	}
	return nil
}

func (o *sessionsOptions) list(ctx context.Context, env *client.Environment, out io.Writer) error {
	l, err := cli.List(ctx, env)
	if err != nil {
		return err
	}
	documents := []sessionJSON{}
	rows := [][]string{{"SESSION", "CLIENT", "STATE", "RUNNING", "AGE"}}
	others := false // of other users
	for _, s := range l.Sessions {
		others = others || !s.Own
	}
	if others {
		rows[0] = append(rows[0], "OWNER")
	}
	for _, s := range l.Sessions {
		documents = append(documents, jsonOfSession(s))
		row := []string{
			l.SessionLabel(s.ID), cli.Printable(s.Client), sessionState(s, time.Now()),
			fmt.Sprintf("%d of %d", s.Running, s.Processes), cli.ShortDuration(time.Since(s.Created)),
		}
		if others {
			row = append(row, cli.Printable(s.Principal))
		}
		rows = append(rows, row)
	}
	if o.json {
		return cli.JSON(out, documents)
	}
	return cli.Table(out, rows, 4)
}

func stateOfSession(s client.SessionInfo) string {
	if s.Attached {
		return string(protocol.SessionAttached)
	}
	return string(protocol.SessionDetached)
}

// sessionState describes whether a session has a connection, and otherwise how long the server
// keeps it.
func sessionState(s client.SessionInfo, now time.Time) string {
	state := stateOfSession(s)
	if !s.Ends.IsZero() {
		state += ", ends in " + cli.Remaining(s.Ends.Sub(now))
	} else if s.Keep > 0 {
		state += ", kept for " + cli.Spell(s.Keep) + " after"
	}
	if s.Observers > 0 {
		state += fmt.Sprintf(", %d watching", s.Observers)
	}
	return state
}

// sessionJSON is a session in the output of sessions --json. The names are those of the
// protocol.
type sessionJSON struct {
	SessionID   string `json:"sessionId"`
	Name        string `json:"name,omitempty"`
	ClientName  string `json:"clientName"`
	Principal   string `json:"principal,omitempty"`
	Own         bool   `json:"own"`
	CreatedAtMs int64  `json:"createdAtMs"`
	State       string `json:"state"`
	EndsAtMs    int64  `json:"endsAtMs,omitempty"`
	KeepMs      int64  `json:"keepMs,omitempty"`
	Observers   int    `json:"observers"`
	Processes   int    `json:"processes"`
	Running     int    `json:"running"`
}

func jsonOfSession(s client.SessionInfo) sessionJSON {
	j := sessionJSON{
		SessionID: s.ID, Name: s.Name, ClientName: s.Client, Principal: s.Principal, Own: s.Own,
		CreatedAtMs: s.Created.UnixMilli(), State: stateOfSession(s), KeepMs: s.Keep.Milliseconds(),
		Observers: s.Observers, Processes: s.Processes, Running: s.Running,
	}
	if !s.Ends.IsZero() {
		j.EndsAtMs = s.Ends.UnixMilli()
	}
	return j
}
