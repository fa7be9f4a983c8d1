package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli/exit"
	"execserver/internal/cli/usage"
	"execserver/protocol"
)

// logsOptions are the flags of logs.
type logsOptions struct {
	where        where
	follow, json bool
}

func newLogsCommand() *cobra.Command {
	var o logsOptions
	command := &cobra.Command{
		Use:        "logs [flags] TARGET",
		Short:      "Print the output of a process",
		GroupID:    groupLook,
		SuggestFor: []string{"log", "tail", "output"},
		Long: "logs prints what a process has written, as far as the server retains it: its standard output to\n" +
			"standard output, and its standard error to standard error. It changes nothing for the program that\n" +
			"started the process. TARGET is a PROCESS, SESSION/PROCESS, or a SESSION with one process that runs,\n" +
			"as exec-server ps lists them; of ids the first four characters can be enough.",
		Example: "  exec-server logs --on box build\n" +
			"  exec-server logs --on box -f build/2 | grep error",
		ValidArgsFunction: o.where.completeTargets,
		Args:              usage.OneTarget,
		RunE: func(command *cobra.Command, args []string) error {
			if err := o.where.check(command); err != nil {
				return err
			}
			return o.where.look("logs", func(ctx context.Context, env *client.Environment) error {
				return o.run(ctx, env, args[0], command.OutOrStdout())
			})
		},
	}
	f := command.Flags()
	f.SortFlags = false
	f.BoolVarP(&o.follow, "follow", "f", false, "go on with what the process writes, until it ends")
	f.BoolVar(&o.json, "json", false, "print a JSON object a line for each event, with the bytes of output in base64")
	o.where.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
	return command
}

// run prints the output of a target. env only finds it; another connection observes its
// session.
func (o *logsOptions) run(ctx context.Context, env *client.Environment, target string, out io.Writer) error {
	session, process, err := resolveProcess(ctx, env, target)
	if err != nil {
		return err
	}
	observer, err := o.where.open(ctx, &client.Options{Name: "exec-server-logs", Observe: session.ID})
	if err != nil {
		return err
	}
	defer exit.Leave(observer)
	if err := o.print(ctx, observer, process, out); err != nil && !isBrokenPipe(err) {
		return fmt.Errorf("cannot print the output of %s: %w", printable(target), err)
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
	end := uint64(0) // number of the event before which to stop; 0 for none
	if !o.follow {
		snapshot, err := process.Snapshot(ctx, 1)
		if err != nil {
			return err
		}
		if end = snapshot.NextSeq; end <= 1 {
			return nil // it has written nothing yet
		}
	}
	for event, err := range process.EventsAfter(ctx, 0) {
		if gap, ok := errors.AsType[*client.GapError](err); ok {
			if err := o.printGap(gap, out); err != nil {
				return err
			}
			if end > 0 && gap.To+1 >= end {
				return nil
			}
			continue
		}
		if err != nil {
			return err
		}
		if err := o.printEvent(event, out); err != nil {
			return err
		}
		if end > 0 && event.Seq+1 >= end {
			return nil
		}
	}
	return nil
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

// printEvent prints the output of an event where it belongs.
func (o *logsOptions) printEvent(event client.Event, out io.Writer) error {
	if o.json {
		j := eventJSON{Kind: event.Kind.String(), Seq: event.Seq, Stream: event.Stream, Chunk: event.Data}
		if event.Exit != nil {
			j.Exit = &event.Exit.ExitRecord
		}
		return encodeJSON(out, j, "")
	}
	if event.Stream == client.Stderr {
		out = os.Stderr
	}
	_, err := out.Write(event.Data)
	return err
}

// printGap tells that output is missing.
func (o *logsOptions) printGap(gap *client.GapError, out io.Writer) error {
	if o.json {
		return encodeJSON(out, eventJSON{Kind: "dropped", Seq: gap.From, LastSeq: gap.To, DroppedBytes: gap.DroppedBytes}, "")
	}
	what := "some"
	if gap.DroppedBytes > 0 {
		what = fmt.Sprintf("%d bytes", gap.DroppedBytes)
	}
	_, err := fmt.Fprintf(os.Stderr, "Warning: the server no longer has %s of the output before what follows\n", what)
	return err
}
