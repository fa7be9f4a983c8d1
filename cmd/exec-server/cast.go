package main

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

// recordingCommands returns the subcommands about recordings.
func recordingCommands() []*cobra.Command {
	return []*cobra.Command{newCastCommand()}
}

func newCastCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "cast COMMAND", Short: "List and fetch recordings of what processes did", GroupID: cli.GroupLook,
		SuggestFor: []string{"recordings", "recording", "asciinema", "replay", "play"},
		Args:       cobra.MatchAll(cli.NeedArgs("name what to do: ls or get"), cli.SubcommandOnly),
		RunE:       func(*cobra.Command, []string) error { return nil }, // Args accepts nothing
	}
	command.AddCommand(newCastListCommand(), newCastGetCommand())
	command.Flags().BoolP("help", "h", false, "print this text")
	return command
}

func newCastListCommand() *cobra.Command {
	var w where
	var asJSON bool
	command := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List the recordings of a server",
		Long: "ls prints the recordings of a server that was started with --record, the newest first: those of\n" +
			"your sessions, or of all sessions if your token may observe them.",
		Example: "  exec-server cast ls --on box | head",
		Args:    cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := w.check(command); err != nil {
				return err
			}
			return w.look("cast", func(ctx context.Context, env *client.Environment) error {
				list, err := recordings(ctx, env)
				if err != nil {
					return err
				}
				return printRecordings(command.OutOrStdout(), list, asJSON)
			})
		},
	}
	f := command.Flags()
	f.SortFlags = false
	f.BoolVar(&asJSON, "json", false, "print a JSON array with one object for each recording")
	w.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
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
		command := commandLine(client.ProcessInfo{Args: r.Args, ArgsTruncated: r.ArgsTruncated}, 0)
		rows = append(rows, []string{cli.Printable(r.ID), cli.Printable(cmp.Or(r.Name, r.Session)), cli.Printable(r.Process), took, size(r.Size), command})
	}
	return cli.Table(out, rows, 3, 4)
}

// recordings lists the recordings of a server.
func recordings(ctx context.Context, env *client.Environment) ([]client.RecordingInfo, error) {
	list, err := env.Recordings(ctx)
	if _, unsupported := errors.AsType[*client.UnsupportedError](err); unsupported {
		return nil, errors.New("this server records nothing; start it with --record DIR")
	}
	return list, err
}

// findRecording returns the id of the recording that a person means: by its id, or the
// beginning of it, or the newest one of a session or a process, which they name as for logs.
func findRecording(list []client.RecordingInfo, name string) (string, error) {
	session, process, both := strings.Cut(name, "/")
	var begins, named []client.RecordingInfo
	sessions := make(map[string]bool) // ids of those that are named
	for _, r := range list {
		ofSession := r.Name == session || r.Session == session
		switch {
		case r.ID == name:
			return r.ID, nil
		case both && ofSession && r.Process == process, !both && (ofSession || r.Process == name):
			named = append(named, r)
			if r.Name != session { // sessions with one name came one after the other
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
	var w where
	command := &cobra.Command{
		Use:   "get [flags] ID",
		Short: "Print a recording, for asciinema",
		Long: "get prints a recording of a server: the ID that exec-server cast ls shows, or a SESSION, a PROCESS or\n" +
			"SESSION/PROCESS, which means its newest recording. It is an asciicast of version 2, which asciinema\n" +
			"and its web player show. One of a process that runs ends with what the process has written so far.",
		Example: "  exec-server cast get --on box build >build.cast && asciinema play build.cast",
		Args:    oneRecording,
		RunE: func(command *cobra.Command, args []string) error {
			if err := w.check(command); err != nil {
				return err
			}
			out := command.OutOrStdout()
			if _, shows := cli.OnTerminal(out); shows {
				return errors.New("a recording may do anything to a terminal; write it into a file, which asciinema plays")
			}
			return w.look("cast", func(ctx context.Context, env *client.Environment) error {
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
	f.SortFlags = false
	w.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
	return command
}

// oneRecording checks that there is one recording.
func oneRecording(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cli.NewUsageError(errors.New("name the recording; exec-server cast ls lists them"), command)
	}
	return cli.NoArgs(command, args[1:])
}
