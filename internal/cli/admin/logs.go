package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
	"execserver/protocol"
)

// logsOptions are the flags of logs.
type logsOptions struct {
	machine      cli.Machine
	follow, json bool
	tail         string
	lines        int // of tail; negative: all
}

// LogsCommand returns the command logs.
func LogsCommand() *cobra.Command {
	var o logsOptions
	command := &cobra.Command{
		Use:        "logs [flags] TARGET",
		Short:      "Print the output of a process",
		GroupID:    cli.GroupLook,
		SuggestFor: []string{"log", "tail", "output"},
		Long: "logs prints the output that the server retains: standard output to standard output, and standard\n" +
			"error to standard error. The program that started the process does not notice.\n\n" +
			"TARGET is a PROCESS, SESSION/PROCESS, or a SESSION with one running process. exec-server ps lists\n" +
			"them. The first four characters of an id can be enough.",
		Example: "  exec-server logs --on box build\n" +
			"  exec-server logs --on box -f build/2 | grep error",
		ValidArgsFunction: o.machine.CompleteTarget,
		Args:              cli.OneTarget,
		RunE: func(command *cobra.Command, args []string) error {
			if err := o.machine.Check(command); err != nil {
				return err
			}
			if o.lines = -1; o.tail != "all" {
				lines, err := strconv.ParseUint(o.tail, 10, 31)
				if err != nil {
					return cli.NewUsageError(cli.InvalidValue("tail", o.tail, "expected a number of lines, or all"), command)
				}
				o.lines = int(lines)
			}
			return o.machine.Query("logs", func(ctx context.Context, env *client.Environment) error {
				return o.run(ctx, env, args[0], command.OutOrStdout())
			})
		},
	}
	f := command.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "follow the output until the process ends")
	f.StringVarP(&o.tail, "tail", "n", "all", "start with the last `NUMBER` lines of the output")
	f.BoolVar(&o.json, "json", false, "print a JSON object for each event, one per line, with output in base64")
	o.machine.AddFlags(f)
	return command
}

// run prints the output of a target. env only finds it; a second connection observes its session.
func (o *logsOptions) run(ctx context.Context, env *client.Environment, target string, out io.Writer) error {
	session, process, err := cli.ResolveProcess(ctx, env, target)
	if err != nil {
		return err
	}
	observer, err := o.machine.Open(ctx, &client.Options{Name: "exec-server-logs", Observe: session.ID})
	if err != nil {
		return err
	}
	defer cli.Leave(observer)
	if err := o.print(ctx, observer, process, out); err != nil && !cli.IsBrokenPipe(err) {
		return fmt.Errorf("cannot print the output of %s: %w", cli.Printable(target), err)
	} else if err != nil {
		return err
	}
	return nil
}

func (o *logsOptions) print(ctx context.Context, observer *client.Environment, id string, out io.Writer) error {
	process, err := observer.Attach(ctx, id)
	if err != nil {
		return err
	}
	lines, end := o.lines, uint64(0) // number of the event after the existing ones
	if !o.follow || lines >= 0 {
		snapshot, err := process.Snapshot(ctx, 1)
		if err != nil {
			return err
		}
		if end = snapshot.NextSeq; end <= 1 { // no output yet
			if lines = -1; !o.follow {
				return nil
			}
		}
	}
	var entries tail
	for event, err := range process.EventsAfter(ctx, 0) {
		entry := logEntry{event: event, last: event.Seq}
		if gap, ok := errors.AsType[*client.GapError](err); ok {
			entry = logEntry{gap: gap, last: gap.To}
		} else if err != nil {
			return err
		}
		entries = append(entries, entry)
		if lines >= 0 && entry.last+1 < end {
			continue
		}
		for _, entry := range entries.lines(lines) {
			if err := o.printEntry(entry, out); err != nil {
				return err
			}
		}
		entries, lines = entries[:0], -1
		if !o.follow && entry.last+1 >= end {
			return nil
		}
	}
	return nil
}

// logEntry is an event, or a gap between events.
type logEntry struct {
	event client.Event
	gap   *client.GapError // nil: it is an event
	last  uint64           // number of the last event
}

// tail is a contiguous part of the output of a process.
type tail []logEntry

// lines returns the last n lines of the tail, or all if n is negative.
func (t tail) lines(n int) tail {
	switch {
	case n < 0:
		return t
	case n == 0:
		return nil
	}
	atEnd := true
	for i := len(t) - 1; i >= 0; i-- {
		data := t[i].event.Data
		if atEnd && len(data) > 0 {
			if atEnd = false; data[len(data)-1] == '\n' {
				n++ // it ends the last line
			}
		}
		for at := bytes.LastIndexByte(data, '\n'); at >= 0; at = bytes.LastIndexByte(data[:at], '\n') {
			if n--; n == 0 && at+1 == len(data) {
				return t[i+1:]
			} else if n == 0 {
				t[i].event.Data = data[at+1:]
				return t[i:]
			}
		}
	}
	return t
}

// printEntry prints an event to its stream, or reports a gap.
func (o *logsOptions) printEntry(entry logEntry, out io.Writer) error {
	if entry.gap != nil {
		return o.printGap(entry.gap, out)
	}
	return o.printEvent(entry.event, out)
}

// eventJSON is an event in the output of logs --json. The names are those of the protocol.
type eventJSON struct {
	Kind         string               `json:"kind"` // output, exited or closed; dropped for events that the server no longer has
	Seq          uint64               `json:"seq"`  // the first, for dropped
	Stream       string               `json:"stream,omitempty"`
	Chunk        []byte               `json:"chunk,omitempty"`
	Exit         *protocol.ExitRecord `json:"exit,omitempty"`
	LastSeq      uint64               `json:"lastSeq,omitempty"`      // of dropped
	DroppedBytes uint64               `json:"droppedBytes,omitempty"` // absent if unknown
}

// printEvent prints the output of an event to its stream.
func (o *logsOptions) printEvent(event client.Event, out io.Writer) error {
	if o.json {
		j := eventJSON{Kind: event.Kind.String(), Seq: event.Seq, Stream: event.Stream, Chunk: event.Data}
		if event.Exit != nil {
			j.Exit = &event.Exit.ExitRecord
		}
		return cli.EncodeJSON(out, j, "")
	}
	if event.Stream == client.Stderr {
		out = os.Stderr
	}
	_, err := out.Write(event.Data)
	return err
}

// printGap reports missing output.
func (o *logsOptions) printGap(gap *client.GapError, out io.Writer) error {
	if o.json {
		return cli.EncodeJSON(out, eventJSON{Kind: "dropped", Seq: gap.From, LastSeq: gap.To, DroppedBytes: gap.DroppedBytes}, "")
	}
	what := "some"
	if gap.DroppedBytes > 0 {
		what = fmt.Sprintf("%d bytes", gap.DroppedBytes)
	}
	_, err := fmt.Fprintf(os.Stderr, "Warning: the server has evicted %s of the output before the following\n", what)
	return err
}
