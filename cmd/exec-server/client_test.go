//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/internal/testkit/transcript"
	"execserver/protocol"
)

type object = map[string]any

// wireClient is one connection. It follows all processes that it starts.
type wireClient struct {
	t *testing.T
	*testclient.Conn
	processes testclient.Processes
}

// connect opens a connection that ends with the test.
func connect(t *testing.T, p *program) *wireClient {
	t.Helper()
	link, err := p.Connect()
	if err != nil {
		t.Fatal(err)
	}
	return newWireClient(t, link)
}

func newWireClient(t *testing.T, link transcript.Conn) *wireClient {
	c := &wireClient{t: t}
	c.Conn = testclient.New(link, c.processes.Notify)
	t.Cleanup(c.Drop)
	return c
}

// handshake initializes the connection and returns the id of the session. resume is the
// id of a session to resume, or "".
func (c *wireClient) handshake(resume string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	p := protocol.InitializeParams{ClientName: "test"}
	if resume != "" {
		p.ResumeSessionID = &resume
	}
	if err := c.Handshake(ctx, p); err != nil {
		c.t.Fatal(err)
	}
	return c.SessionID
}

// try calls a method and returns the error in the reply, or nil.
func (c *wireClient) try(method string, params, result any) *protocol.Error {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	err := c.Call(ctx, method, params, result)
	refused, ok := errors.AsType[*protocol.Error](err)
	if err != nil && !ok {
		c.t.Fatalf("%s: %v", method, err)
	}
	return refused
}

// call calls a method that must succeed.
func (c *wireClient) call(method string, params, result any) {
	c.t.Helper()
	if err := c.try(method, params, result); err != nil {
		c.t.Fatalf("%s: %v", method, err)
	}
}

// start starts a process.
func (c *wireClient) start(params object) {
	c.t.Helper()
	c.processes.Of(params["processId"].(string))
	c.call("process/start", params, nil)
}

// outputOf waits for the first line that a process prints.
func (c *wireClient) outputOf(id string) (line string) {
	c.t.Helper()
	e := c.processes.Of(id)
	testkit.WaitFor(c.t, testkit.Patience, func() error {
		text, _, ok := strings.Cut(e.Output.String(), "\n")
		if !ok {
			return fmt.Errorf("%s has printed %q", id, text)
		}
		line = text
		return nil
	})
	return line
}

// pidsOf waits for the line of process ids that a process prints.
func (c *wireClient) pidsOf(id string) (pids []int) {
	c.t.Helper()
	for _, field := range strings.Fields(c.outputOf(id)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			c.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// closed waits for a process to close.
func (c *wireClient) closed(id string) {
	c.t.Helper()
	select {
	case <-c.processes.Of(id).Closed:
	case <-time.After(testkit.Patience):
		c.t.Fatalf("%s has not closed", id)
	}
}

// exited waits for the exit of a process and returns its record.
func (c *wireClient) exited(id string) protocol.ExitRecord {
	c.t.Helper()
	select {
	case e := <-c.processes.Of(id).Exited:
		return e
	case <-time.After(testkit.Patience):
		c.t.Fatalf("%s has not exited", id)
		return protocol.ExitRecord{}
	}
}

// disconnected waits until the server closes the connection, which it must do for this
// reason.
func (c *wireClient) disconnected(reason string) {
	c.t.Helper()
	select {
	case <-c.Done():
		if end, ok := errors.AsType[*transcript.EndedError](c.Err()); !ok || end.Code != 1008 || end.Reason != reason {
			c.t.Errorf("the connection ended with %v, want 1008 %q", c.Err(), reason)
		}
	case <-time.After(testkit.Patience):
		c.t.Errorf("the connection does not end; want %q", reason)
	}
}

// family starts a process that ignores every signal that it can, and that has a child. It
// returns the process ids of both.
func (c *wireClient) family() []int {
	c.t.Helper()
	return c.script("trap '' TERM INT HUP; sleep 1000 & echo $$ $!; wait")
}

// script starts a shell that prints one line of process ids, and returns them. The
// processes end with the test.
func (c *wireClient) script(text string) []int {
	c.t.Helper()
	c.start(shellSpec("p", text))
	pids := c.pidsOf("p")
	for _, pid := range pids {
		p, err := os.FindProcess(pid) // which knows it from a later one with the same id
		if err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() { _ = p.Kill() })
	}
	return pids
}

// shellSpec returns the params of process/start for a shell command.
func shellSpec(id, command string) object {
	return object{"processId": id, "argv": []string{"/bin/sh", "-c", command}, "cwd": "/", "env": object{"PATH": os.Getenv("PATH")}, "tty": false}
}
