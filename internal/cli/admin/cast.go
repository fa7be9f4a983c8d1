package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
)

// CastCommand returns the command cast.
func CastCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "cast COMMAND", Short: "List and fetch recordings of processes", GroupID: cli.GroupLook,
		SuggestFor: []string{"recordings", "recording", "asciinema", "replay", "play"},
		Args:       cobra.MatchAll(cli.NeedArgs("name a command: ls or get"), cli.SubcommandOnly),
		RunE:       func(*cobra.Command, []string) error { return nil }, // never called: Args accepts no arguments
	}
	command.AddCommand(newCastListCommand(), newCastGetCommand())
	return command
}

func newCastListCommand() *cobra.Command {
	var m cli.Machine
	var asJSON bool
	command := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List the recordings of a server",
		Long: "The server must have been started with --record. ls lists the newest recording first. It lists the\n" +
			"recordings of your sessions, or of all sessions if your token may observe them.",
		Example: "  exec-server cast ls --on box | head",
		Args:    cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := m.Check(command); err != nil {
				return err
			}
			return m.Query("cast", func(ctx context.Context, env *client.Environment) error {
				list, err := recordings(ctx, env)
				if err != nil {
					return err
				}
				return printRecordings(command.OutOrStdout(), list, asJSON)
			})
		},
	}
	f := command.Flags()
	f.BoolVar(&asJSON, "json", false, "print a JSON array with one object for each recording")
	m.AddFlags(f)
	return command
}

// recordingJSON is a recording in the output of cast ls --json. The names are those of
// the protocol.
type recordingJSON struct {
	ID          string   `json:"recordingId"`
	Session     string   `json:"sessionId"`
	Name        string   `json:"sessionName,omitempty"`
	Process     string   `json:"processId"`
	Principal   string   `json:"principal,omitempty"`
	Own         bool     `json:"own"`
	Argv        []string `json:"argv"`
	Cut         bool     `json:"argvTruncated,omitempty"`
	Dir         string   `json:"cwd"`
	TTY         bool     `json:"tty"`
	Input       bool     `json:"input,omitempty"`
	Live        bool     `json:"live,omitempty"`
	StartedAtMs int64    `json:"startedAtMs"`
	EndedAtMs   int64    `json:"endedAtMs,omitempty"`
	SizeBytes   int64    `json:"sizeBytes"`
}

// shortSession is the length of the session ids that cast ls prints, as ps does.
const shortSession = 8

func printRecordings(out io.Writer, list []client.RecordingInfo, asJSON bool) error {
	if asJSON {
		all := make([]recordingJSON, 0, len(list))
		for _, r := range list {
			j := recordingJSON{
				ID: r.ID, Session: r.Session, Name: r.Name, Process: r.Process, Principal: r.Principal, Own: r.Own,
				Argv: r.Args, Cut: r.ArgsTruncated, Dir: r.Dir, TTY: r.TTY, Input: r.Input, Live: r.Live,
				StartedAtMs: r.Started.UnixMilli(), SizeBytes: r.Size,
			}
			if !r.Live {
				j.EndedAtMs = r.Ended.UnixMilli()
			}
			all = append(all, j)
		}
		return cli.JSON(out, all)
	}
	rows := [][]string{{"RECORDING", "SESSION", "PROCESS", "TOOK", "SIZE", "COMMAND"}}
	for _, r := range list {
		took := "live"
		if !r.Live {
			took = cli.ShortDuration(r.Ended.Sub(r.Started))
		}
		command := cli.CommandLine(client.ProcessInfo{Args: r.Args, ArgsTruncated: r.ArgsTruncated}, 0)
		rows = append(rows, []string{cli.Printable(r.ID), cli.Printable(cmp.Or(r.Name, r.Session[:min(shortSession, len(r.Session))])), cli.Printable(r.Process), took, cli.FormatSize(r.Size), command})
	}
	return printTable(out, rows, 3, 4)
}

// recordings lists the recordings of a server.
func recordings(ctx context.Context, env *client.Environment) ([]client.RecordingInfo, error) {
	list, err := env.Recordings(ctx)
	if _, unsupported := errors.AsType[*client.UnsupportedError](err); unsupported {
		return nil, errors.New("this server records nothing; start it with --record DIR")
	}
	return list, err
}

// findRecording returns the id of a recording. name is its id, a prefix of it, or a session or
// process, which stands for its newest recording. A session has its name, its id, or the beginning
// of the id that cast ls prints.
func findRecording(list []client.RecordingInfo, name string) (string, error) {
	session, process, both := strings.Cut(name, "/")
	var begins, named []client.RecordingInfo
	sessions := make(map[string]bool) // ids of those that are named
	for _, r := range list {
		ofSession := r.Name == session || r.Session == session || len(session) >= shortSession && strings.HasPrefix(r.Session, session)
		switch {
		case r.ID == name:
			return r.ID, nil
		case both && ofSession && r.Process == process, !both && (ofSession || r.Process == name):
			named = append(named, r)
			if r.Name != session { // sessions with the same name existed one after another
				sessions[r.Session] = true
			}
		case len(name) >= 4 && strings.HasPrefix(r.ID, name):
			begins = append(begins, r)
		}
	}
	switch {
	case len(sessions) > 1:
		return "", fmt.Errorf("%d sessions have recordings of %s; name SESSION/PROCESS, or the recording, as exec-server cast ls lists them",
			len(sessions), cli.Printable(name))
	case len(named) > 0:
		return named[0].ID, nil
	case len(begins) == 1:
		return begins[0].ID, nil
	case len(begins) > 1:
		return "", fmt.Errorf("%d recordings begin with %s, such as %s and %s", len(begins), cli.Printable(name), cli.Printable(begins[1].ID), cli.Printable(begins[0].ID))
	}
	return "", fmt.Errorf("the server has no recording of %s; exec-server cast ls lists them", cli.Printable(name))
}

func newCastGetCommand() *cobra.Command {
	var m cli.Machine
	command := &cobra.Command{
		Use:   "get [flags] ID",
		Short: "Print a recording, for asciinema",
		Long: "ID comes from \"exec-server cast ls\". For a SESSION, a PROCESS or SESSION/PROCESS, get prints the\n" +
			"newest recording. The format is asciicast version 2, which asciinema and its web player show.\n" +
			"The recording of a running process ends with the output so far.",
		Example: "  exec-server cast get --on box build >build.cast && asciinema play build.cast",
		Args:    oneRecording,
		RunE: func(command *cobra.Command, args []string) error {
			if err := m.Check(command); err != nil {
				return err
			}
			out := command.OutOrStdout()
			if _, shows := cli.OnTerminal(out); shows {
				return errors.New("a recording can control the terminal; write it into a file for asciinema")
			}
			return m.Query("cast", func(ctx context.Context, env *client.Environment) error {
				list, err := recordings(ctx, env)
				if err != nil {
					return err
				}
				id, err := findRecording(list, args[0])
				if err != nil {
					return err
				}
				_, err = io.Copy(out, env.Recording(ctx, id))
				return err
			})
		},
	}
	f := command.Flags()
	m.AddFlags(f)
	return command
}

// oneRecording accepts exactly one recording.
func oneRecording(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cli.NewUsageError(errors.New("name the recording; exec-server cast ls lists them"), command)
	}
	return cli.NoArgs(command, args[1:])
}
