// Command agent is the loop of an agent, with a person in place of the model. It reads
// tool calls from standard input, one JSON object to a line, and writes one object for
// each:
//
//	{"id":"1","run":"echo hello"}
//	{"id":"2","run":"sh"}
//	{"id":"2","write":"echo typed; exit 3\n"}
//
//	go run ./examples/agent            # here, without a server
//	go run ./examples/agent box
//
// No call takes longer than the yield window. If a command has not ended by then, the
// answer has its output so far, and the command continues. A write to it, which may be
// empty, collects later output.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"execserver/client"
	"execserver/client/environments"
)

// How long an answer waits for a command. A new command gets more time than one that
// receives input, which usually responds at once or not at all.
const (
	runWindow   = 10 * time.Second
	writeWindow = 250 * time.Millisecond
)

// toolCall is a request of the model.
type toolCall struct {
	ID    string `json:"id"`
	Run   string `json:"run"`   // a script for the shell, for a new command
	Write string `json:"write"` // input for the command that this call id started
}

// toolResult is the answer to the model.
type toolResult struct {
	ID      string `json:"id"`
	Output  string `json:"output"`
	Omitted int64  `json:"omitted,omitempty"` // bytes left out of the output
	Running bool   `json:"running"`
	Exit    string `json:"exit,omitempty"`
	Error   string `json:"error,omitempty"`
}

func main() {
	name := "local"
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	ctx := context.Background()
	env, err := environments.Open(ctx, name, nil)
	if err == nil {
		err = serve(ctx, env, os.Stdin, os.Stdout)
		_ = env.Close() // with all commands that still run
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, env *client.Environment, in io.Reader, out io.Writer) error {
	a := &agent{env: env}
	answers := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); ; {
		if !lines.Scan() {
			return lines.Err()
		}
		var call toolCall
		if err := json.Unmarshal(lines.Bytes(), &call); err != nil {
			return fmt.Errorf("tool call %q: %w", lines.Text(), err)
		}
		if err := answers.Encode(a.answer(ctx, call)); err != nil {
			return err
		}
	}
}

type agent struct {
	env   *client.Environment
	calls client.Calls
}

// answer executes a tool call. An error is an answer, too.
func (a *agent) answer(ctx context.Context, call toolCall) toolResult {
	snapshot, err := a.do(ctx, call)
	result := toolResult{ID: call.ID}
	if err != nil {
		result.Error = err.Error()
	}
	if snapshot != nil {
		result.Output, result.Omitted, result.Running = string(snapshot.Output), snapshot.Omitted, snapshot.Running
		if snapshot.Exit != nil {
			result.Exit = snapshot.Exit.String()
		}
	}
	return result
}

func (a *agent) do(ctx context.Context, call toolCall) (*client.Snapshot, error) {
	if call.Run == "" {
		command, ok := a.calls.Get(call.ID)
		if !ok {
			return nil, fmt.Errorf("no command was started as tool call %q", call.ID)
		}
		if call.Write != "" {
			if err := command.Write(ctx, []byte(call.Write)); err != nil {
				return nil, err
			}
		}
		return command.Collect(ctx, writeWindow)
	}
	command := a.env.Command(ctx, "sh", "-c", call.Run)
	command.ToolCallID = call.ID
	command.SnapshotBytes = 32 << 10 // a model cannot use more
	if _, err := command.StdinPipe(); err != nil {
		return nil, err
	}
	if err := a.calls.Add(call.ID, command); err != nil {
		return nil, err
	}
	return command.Collect(ctx, runWindow)
}
