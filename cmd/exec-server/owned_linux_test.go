package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// ownedProgram is exec-server with everything that it starts.
type ownedProgram struct {
	*program
	t *testing.T
}

// startOwned starts exec-server, which ends with the test, as does everything
// that it starts. listens says that it prints where it listens.
func startOwned(t *testing.T, attr *syscall.SysProcAttr, listens bool, args ...string) *ownedProgram {
	t.Helper()
	command := exec.Command("exec-server", args...)
	command.SysProcAttr = attr
	p, err := launch(command, listens)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.signal(syscall.SIGTERM)
		if _, err := p.wait(patience); err != nil {
			t.Errorf("exec-server does not end on SIGTERM: %v", err)
		}
		p.kill()
		if t.Failed() {
			t.Logf("stderr of exec-server:\n%s", p.stderr.text())
		}
	})
	return &ownedProgram{p, t}
}

// startListening starts exec-server on a unix socket.
func startListening(t *testing.T, attr *syscall.SysProcAttr, args ...string) *ownedProgram {
	t.Helper()
	dir, err := os.MkdirTemp("", "es") // paths of sockets have to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return startOwned(t, attr, true, append([]string{"--listen", "unix://" + filepath.Join(dir, "s")}, args...)...)
}

// server is the process id of the server proper.
func (p *ownedProgram) server() int {
	p.t.Helper()
	var pid int
	testkit.WaitFor(p.t, patience, func() error {
		for _, child := range childrenOf(p.command.Process.Pid) {
			// Before it is executed it looks like its parent, and has its environment.
			env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", child))
			if bytes.Contains(env, []byte("EXEC_SERVER_KEPT=")) {
				pid = child
				return nil
			}
		}
		return errors.New("the keeper has no server")
	})
	return pid
}

func childrenOf(pid int) (children []int) {
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		for _, word := range strings.Fields(string(text)) {
			child, _ := strconv.Atoi(word)
			children = append(children, child)
		}
	}
	return children
}

// ending waits for the end of the program.
func (p *ownedProgram) ending() *os.ProcessState {
	p.t.Helper()
	if _, err := p.wait(patience); err != nil {
		p.t.Fatal(err)
	}
	return p.command.ProcessState
}

// follower is one connection with its session, that follows all processes at once.
type follower struct {
	t    *testing.T
	w    io.WriteCloser
	info json.RawMessage // of initialize

	mu      sync.Mutex
	replies map[int]chan message
	events  map[string]*events // by process
	nextID  int
}

// events are those of one process.
type events struct {
	output testkit.Buffer
	exited chan message // gets process/exited
	closed chan struct{}
}

type message struct {
	ID     *int            `json:"id"`
	Method string          `json:"method"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	Params struct {
		ProcessID string `json:"processId"`
		Chunk     string `json:"chunk"`
		ExitCode  int    `json:"exitCode"`
		Signal    string `json:"signal"`
		EndedBy   string `json:"endedBy"`
	} `json:"params"`
}

// connect opens a connection and a session.
func (p *ownedProgram) connect() *follower {
	p.t.Helper()
	c := &follower{t: p.t, replies: make(map[int]chan message), events: make(map[string]*events)}
	var r io.Reader
	if p.url == "" {
		c.w, r = p.stdin, p.stdout.file
	} else {
		conn, err := p.dial()
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() { _ = conn.Close() })
		c.w, r = conn, conn
	}
	go c.read(r) // ends with the connection
	var greeting struct {
		EnvironmentInfo json.RawMessage `json:"environmentInfo"`
	}
	c.call("initialize", map[string]any{"clientName": "test"}, &greeting)
	c.info = greeting.EnvironmentInfo
	c.send(map[string]any{"method": "initialized"})
	return c
}

func (c *follower) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			c.t.Errorf("the server sent %q: %v", lines.Bytes(), err)
			return
		}
		c.mu.Lock()
		reply := chan message(nil)
		if m.ID != nil {
			reply = c.replies[*m.ID]
		}
		e := c.events[m.Params.ProcessID]
		c.mu.Unlock()
		switch {
		case reply != nil:
			reply <- m
		case e == nil:
		case m.Method == "process/output":
			data, _ := base64.StdEncoding.DecodeString(m.Params.Chunk)
			_, _ = e.output.Write(data)
		case m.Method == "process/exited":
			e.exited <- m
		case m.Method == "process/closed":
			close(e.closed)
		}
	}
}

func (c *follower) send(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.w.Write(append(text, '\n')); err != nil {
		c.t.Errorf("send: %v", err)
	}
}

// try calls a method and returns the reply.
func (c *follower) try(method string, params any) message {
	c.t.Helper()
	reply := make(chan message, 1)
	c.mu.Lock()
	c.nextID++
	id := c.nextID
	c.replies[id] = reply
	c.mu.Unlock()
	c.send(map[string]any{"id": id, "method": method, "params": params})
	select {
	case m := <-reply:
		return m
	case <-time.After(patience):
		c.t.Fatalf("no reply to %s", method)
		return message{}
	}
}

func (c *follower) call(method string, params, result any) {
	c.t.Helper()
	m := c.try(method, params)
	if m.Error != nil {
		c.t.Fatalf("%s: %s", method, m.Error.Message)
	}
	if result != nil {
		if err := json.Unmarshal(m.Result, result); err != nil {
			c.t.Fatalf("%s: %q: %v", method, m.Result, err)
		}
	}
}

type params map[string]any

// spec is the params of process/start for a child program.
func spec(id, child string, args ...string) params {
	argv, env := testkit.Child(child, args...)
	return params{"processId": id, "argv": argv, "cwd": "/", "env": env, "tty": false}
}

// expect prepares for the events of a process.
func (c *follower) expect(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events[id] = &events{exited: make(chan message, 1), closed: make(chan struct{})}
}

func (c *follower) eventsOf(id string) *events {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events[id]
}

// start starts a process.
func (c *follower) start(p params) {
	c.t.Helper()
	c.expect(p["processId"].(string))
	c.call("process/start", p, nil)
}

// outputOf waits for the first line that a process prints.
func (c *follower) outputOf(id string) (line string) {
	c.t.Helper()
	e := c.eventsOf(id)
	testkit.WaitFor(c.t, patience, func() error {
		text, _, ok := strings.Cut(e.output.String(), "\n")
		if !ok {
			return fmt.Errorf("%s has printed %q", id, text)
		}
		line = text
		return nil
	})
	return line
}

// pidOf is the process id that a process prints.
func (c *follower) pidOf(id string) int {
	c.t.Helper()
	pid, err := strconv.Atoi(c.outputOf(id))
	if err != nil {
		c.t.Fatal(err)
	}
	return pid
}

// closed waits for a process to close.
func (c *follower) closed(id string) {
	c.t.Helper()
	select {
	case <-c.eventsOf(id).closed:
	case <-time.After(patience):
		c.t.Fatalf("%s has not closed", id)
	}
}

// exited waits for the exit of a process and returns its record.
func (c *follower) exited(id string) message {
	c.t.Helper()
	select {
	case m := <-c.eventsOf(id).exited:
		return m
	case <-time.After(patience):
		c.t.Fatalf("%s has not exited", id)
		return message{}
	}
}
