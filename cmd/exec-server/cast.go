//go:build !core

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/errno"
	"execserver/internal/picture"
	"execserver/internal/recording"
	emulator "execserver/internal/screen"
)

// recordingCommands returns the subcommands about recordings.
func recordingCommands() []*cobra.Command {
	return []*cobra.Command{newReplayCommand(), newCastCommand()}
}

func newCastCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "cast COMMAND", Short: "List recordings, and make texts and pictures of them", GroupID: groupLook,
		SuggestFor: []string{"recordings", "recording", "asciinema"},
		Args:       cobra.MatchAll(needArgs("name what to do: list or export"), subcommandOnly),
		RunE:       func(*cobra.Command, []string) error { return nil }, // Args accepts nothing
	}
	command.AddCommand(newCastListCommand(), newCastExportCommand())
	command.Flags().BoolP("help", "h", false, "print this text")
	return command
}

func newCastListCommand() *cobra.Command {
	var w where
	var asJSON bool
	command := &cobra.Command{
		Use:   "list [flags]",
		Short: "List the recordings of a server",
		Long: "list prints the recordings of a server that was started with --record, the newest first: those of\n" +
			"your sessions, or of all sessions if your token may observe them.",
		Example: "  exec-server cast list --on box | head",
		Args:    noArgs,
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

// recordingJSON is a recording in the output of cast list --json. The names are those of
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
		return printJSON(out, all)
	}
	rows := [][]string{{"RECORDING", "SESSION", "PROCESS", "TOOK", "SIZE", "COMMAND"}}
	for _, r := range list {
		took := "live"
		if !r.Live {
			took = shortDuration(r.Ended.Sub(r.Started))
		}
		command := commandLine(client.ProcessInfo{Args: r.Args, ArgsTruncated: r.ArgsTruncated}, 0)
		rows = append(rows, []string{printable(r.ID), printable(cmp.Or(r.Name, r.Session)), printable(r.Process), took, size(r.Size), command})
	}
	return printTable(out, rows, 3, 4)
}

// castSource is where a subcommand finds a recording: in a file here, or at a server.
type castSource struct{ where where }

// checkOne accepts the name of one recording.
func (*castSource) checkOne(command *cobra.Command, args []string) error {
	if len(args) == 0 {
		return &usageError{errors.New("name the file of a recording, or its id at a server; exec-server cast list lists them"), command}
	}
	return noArgs(command, args[1:])
}

// read calls work with a recording, until work returns or a signal comes, which ends ctx.
func (s *castSource) read(name string, work func(ctx context.Context, from io.Reader) error) error {
	if s.where.on+s.where.url == "" {
		file, err := os.Stdin, error(nil)
		if name != "-" {
			file, err = os.Open(name)
		}
		if err == nil {
			defer file.Close()
			return s.readFile(file, work)
		}
		if !errors.Is(err, fs.ErrNotExist) || strings.ContainsAny(name, "/.") && !strings.Contains(name, "Z-") {
			return fmt.Errorf("open %s: %w", name, errno.Wrap(err))
		}
		if err := needDefault(); err != nil {
			return fmt.Errorf("there is no file %s; if it is the id of a recording: %w", name, err)
		}
	}
	return s.where.look("cast", func(ctx context.Context, env *client.Environment) error {
		list, err := recordings(ctx, env)
		if err != nil {
			return err
		}
		id, err := findRecording(list, name)
		if err != nil {
			return err
		}
		return work(ctx, env.Recording(ctx, id))
	})
}

// recordings lists the recordings of a server.
func recordings(ctx context.Context, env *client.Environment) ([]client.RecordingInfo, error) {
	list, err := env.Recordings(ctx)
	if _, unsupported := errors.AsType[*client.UnsupportedError](err); unsupported {
		return nil, errors.New("this server records nothing; start it with --record DIR")
	}
	return list, err
}

func (s *castSource) readFile(file *os.File, work func(ctx context.Context, from io.Reader) error) error {
	ignoreBrokenPipes() // the writers notice
	ctx, stop := untilSignal()
	defer stop()
	err := work(ctx, file)
	if signaled, ok := errors.AsType[signalError](context.Cause(ctx)); ok {
		return exitCode(exitSignal + int(signaled.signal))
	}
	if isBrokenPipe(err) {
		return exitCode(1)
	}
	return err
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
		return "", fmt.Errorf("%d sessions have recordings of %s; name SESSION/PROCESS, or the recording, as exec-server cast list lists them",
			len(sessions), printable(name))
	case len(named) > 0:
		return named[0].ID, nil
	case len(begins) == 1:
		return begins[0].ID, nil
	case len(begins) > 1:
		return "", fmt.Errorf("%d recordings begin with %s, such as %s and %s", len(begins), printable(name), printable(begins[1].ID), printable(begins[0].ID))
	}
	return "", fmt.Errorf("the server has no recording of %s; exec-server cast list lists them", printable(name))
}

// castExport are the flags of cast export.
type castExport struct {
	from            castSource
	svg, text, cast bool
	at              time.Duration
}

func newCastExportCommand() *cobra.Command {
	var o castExport
	command := &cobra.Command{
		Use:   "export [flags] FILE|ID",
		Short: "Make a text or a picture of a recording",
		Long: "export reads a recording: a FILE, or - for standard input, or with --on or --url the ID that\n" +
			"exec-server cast list shows, or a SESSION, a PROCESS or SESSION/PROCESS, which means its newest\n" +
			"recording. It prints what was on the terminal at the end, or at another time, as plain text or as a\n" +
			"picture in SVG. Of a process with pipes, the text is all output up to that time. --cast prints the\n" +
			"recording itself, for the programs of asciinema.",
		Example: "  exec-server cast export --svg build.cast >build.svg\n" +
			"  exec-server cast export --text --at 1m30s --on box build\n" +
			"  exec-server cast export --cast --on box build >build.cast",
		Args: o.from.checkOne,
		RunE: func(command *cobra.Command, args []string) error {
			if err := o.from.where.check(command); err != nil {
				return err
			}
			switch chosen := slices.DeleteFunc([]bool{o.svg, o.text, o.cast}, func(set bool) bool { return !set }); {
			case len(chosen) != 1:
				return &usageError{errors.New("choose one of --svg, --text and --cast"), command}
			case o.at < 0:
				return &usageError{invalidValue("at", o.at.String(), "must not be negative"), command}
			case o.cast && command.Flags().Changed("at"):
				return &usageError{errors.New("--at is for --svg and --text"), command}
			case !command.Flags().Changed("at"):
				o.at = 1<<63 - 1
			}
			return o.from.read(args[0], func(_ context.Context, from io.Reader) error {
				return o.run(from, command.OutOrStdout())
			})
		},
	}
	f := command.Flags()
	f.SortFlags = false
	f.BoolVar(&o.svg, "svg", false, "print a picture")
	f.BoolVar(&o.text, "text", false, "print plain text")
	f.BoolVar(&o.cast, "cast", false, "print the recording itself")
	f.DurationVar(&o.at, "at", 0, "show the `TIME` after the start, such as 1m30s, instead of the end")
	o.from.where.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
	return command
}

func (o *castExport) run(from io.Reader, out io.Writer) error {
	if o.cast {
		if _, shows := onTerminal(out); shows {
			return errors.New("a recording may do anything to a terminal; write it into a file, or use exec-server replay")
		}
		_, err := io.Copy(out, from)
		return err
	}
	shown, err := newShownCast(from)
	if err != nil {
		return err
	}
	var text strings.Builder
	for {
		e, err := shown.reader.Next()
		if err != nil {
			if err := shown.warnOfEnd(err); err != nil {
				return err
			}
			break
		}
		if e.At > o.at {
			break
		}
		if shown.show(e); o.text && shown.reader.Pipes() && e.Kind == recording.Output {
			if text.Len()+len(e.Text) > maxCastText {
				return fmt.Errorf("the text has more than %d bytes; --cast prints all of them", maxCastText)
			}
			text.WriteString(e.Text)
		}
	}
	switch {
	case o.svg:
		_, cols := shown.screen.Size()
		text.Reset()
		text.WriteString(picture.SVG(cutRunes(printable(shown.reader.Header().Command), max(1, cols-20)), strings.Join(shown.screen.StyledRows(), "\n"), cols))
	case shown.reader.Pipes():
		plain := text.String()
		text.Reset()
		writePlain(&text, plain)
	default:
		text.WriteString(strings.TrimRight(strings.Join(shown.screen.Rows(), "\n"), "\n") + "\n")
	}
	_, err = io.WriteString(out, text.String())
	return err
}

// maxCastText bounds the output that cast export collects.
const maxCastText = 256 << 20

// writePlain writes text without what controls a terminal, except for line feeds and tabs.
func writePlain(out *strings.Builder, text string) {
	text = styleSequence.ReplaceAllString(text, "")
	for line := range strings.Lines(text) {
		line, ended := strings.CutSuffix(line, "\n")
		for i, cell := range strings.Split(strings.TrimSuffix(line, "\r"), "\t") {
			if i > 0 {
				out.WriteByte('\t')
			}
			out.WriteString(strings.Map(safeRune, cell))
		}
		if ended {
			out.WriteByte('\n')
		}
	}
}

// shownCast is a recording, and the screen of its terminal up to some event.
type shownCast struct {
	reader *recording.Reader
	screen *emulator.Screen
	ended  bool // the recording says how the process ended, or why it stops
}

func newShownCast(from io.Reader) (*shownCast, error) {
	reader, err := recording.NewReader(from)
	if err != nil {
		return nil, fmt.Errorf("cannot read the recording: %w", err)
	}
	term := reader.Header().Term
	rows, cols := fittingSize(term.Rows, term.Cols)
	if rows != term.Rows || cols != term.Cols {
		fmt.Fprintf(os.Stderr, "Warning: the terminal had %d rows and %d columns; it is shown with %d and %d\n", term.Rows, term.Cols, rows, cols)
	}
	return &shownCast{reader: reader, screen: emulator.New(rows, cols)}, nil
}

// fittingSize returns the size, or the largest that a screen may have within it.
func fittingSize(rows, cols int) (int, int) {
	rows, cols = min(rows, emulator.MaxRows), min(cols, emulator.MaxCols)
	return min(rows, emulator.MaxCells/cols), cols
}

// show shows an event.
func (s *shownCast) show(e recording.Event) {
	s.note(e)
	switch e.Kind {
	case recording.Output:
		text := e.Text
		if s.reader.Pipes() {
			text = strings.ReplaceAll(text, "\n", "\r\n")
		}
		s.screen.Write([]byte(text))
	case recording.Resize:
		s.screen.Resize(fittingSize(e.Rows, e.Cols))
	}
}

// note notes whether the event may be the last one: how the process ended, or why the
// recording stops.
func (s *shownCast) note(e recording.Event) {
	switch e.Kind {
	case recording.Exit, recording.Marker:
		s.ended = !e.IsGap()
	case recording.Output:
		s.ended = false
	}
}

// warnOfEnd says what keeps a recording from being whole, and returns any other error.
func (s *shownCast) warnOfEnd(err error) error {
	switch {
	case errors.Is(err, recording.ErrCut):
		fmt.Fprintf(os.Stderr, "Warning: %s\n", err)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("cannot read the recording: %w", err)
	case !s.ended && s.reader.Header().ExecServer != nil:
		fmt.Fprintln(os.Stderr, "Warning: the recording does not say how the process ended: it still runs, or nothing more could be recorded")
	}
	return nil
}
