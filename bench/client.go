//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"execserver/protocol"
	"execserver/transport"
)

// client is a connection that uses as little processor time as possible, because the client
// and the server share the machine: one goroutine sends, and reads while it waits. It checks
// that the events of every process arrive without gaps and repeats.
//
// After a failure, which err keeps, the methods do nothing.
type client struct {
	conn     transport.Conn
	err      error
	buf      []byte // the last message
	lastID   int
	awaited  int // id of the request of call; 0 when its reply has come
	answered int // replies that came
	closed   int // processes that have closed
	procs    map[string]*proc
}

// proc is the state of a process, as far as its events have arrived. Some servers send
// events out of order: the last event has the highest number, and all numbers to it must
// have come once, which their sum shows.
type proc struct {
	id          string
	events, sum uint64 // how many events came, and the sum of their numbers
	last        uint64 // the number of closed
	bytes       int64
	chunks      int
	code        int
	closed      bool
}

// dial connects. The connection ends with ctx.
func dial(ctx context.Context, url string) *client {
	c := &client{procs: map[string]*proc{}}
	if c.conn, c.err = transport.Dial(ctx, url, &transport.DialOptions{MaxMessageBytes: 1 << 30}); c.err != nil {
		return c
	}
	context.AfterFunc(ctx, c.close)
	c.call(protocol.MethodInitialize, protocol.InitializeParams{ClientName: "bench"})
	c.write([]byte(`{"method":"initialized"}`))
	return c
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close(transport.Reason{})
	}
}

func (c *client) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *client) write(msg []byte) {
	if c.err == nil {
		c.fail(c.conn.Write(msg))
	}
}

// request is an encoded request that can be sent again and again.
type request []byte

const beforeID, widthOfID = len(`{"id":`), 10

func encode(method string, params any) request {
	var text []byte
	if p, ok := params.(protocol.Appender); ok {
		text = p.AppendJSON(nil)
	} else {
		text, _ = json.Marshal(params) // all of them can be encoded
	}
	msg := fmt.Appendf(nil, `{"id":%*d,"method":%q,"params":`, widthOfID, 0, method)
	return append(append(msg, text...), '}')
}

// send sends a request under a new id. answered counts its reply.
func (c *client) send(r request) {
	c.lastID++
	copy(r[beforeID:], fmt.Sprintf("%*d", widthOfID, c.lastID))
	c.write(r)
}

// call sends a request and returns the message of its result, which is valid until the
// client reads the next one.
func (c *client) call(method string, params any) []byte { return c.again(encode(method, params)) }

// again is like call for an encoded request.
func (c *client) again(r request) []byte {
	c.send(r)
	c.awaited = c.lastID
	c.until(func() bool { return c.awaited == 0 })
	return c.buf
}

// until reads messages until something is so.
func (c *client) until(so func() bool) {
	for c.err == nil && !so() {
		var err error
		if c.buf, err = c.conn.Read(c.buf[:0]); err == nil {
			err = c.message(c.buf)
		}
		c.fail(err)
	}
}

// inFlight calls send n times, so that at most so many requests are on their way. over counts
// those that are over.
func (c *client) inFlight(n, atOnce int, send func(), over *int) {
	before := *over
	for sent := 0; sent < n && c.err == nil; sent++ {
		c.until(func() bool { return sent-(*over-before) < atOnce })
		send()
	}
	c.until(func() bool { return *over-before == n })
}

// sendStart starts a process and does not wait for the reply.
func (c *client) sendStart(tty bool, sandbox json.RawMessage, argv ...string) *proc {
	p := &proc{id: "p" + strconv.Itoa(c.lastID+1)}
	c.procs[p.id] = p
	c.send(encode(protocol.MethodStart, protocol.StartParams{
		ProcessID: p.id, Argv: argv, Cwd: protocol.URIPath("/"), TTY: tty, Sandbox: sandbox,
		Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"},
	}))
	return p
}

// run starts a process and waits until it has closed.
func (c *client) run(tty bool, sandbox json.RawMessage, argv ...string) *proc {
	p := c.sendStart(tty, sandbox, argv...)
	c.until(func() bool { return p.closed })
	if p.code != 0 {
		c.fail(fmt.Errorf("%s: exit code %d", argv[0], p.code))
	}
	return p
}

func (c *client) runTrue() { c.run(false, nil, "/bin/true") }

var outputPrefix = []byte(`{"method":"process/output"`)

func (c *client) message(msg []byte) error {
	if bytes.HasPrefix(msg, outputPrefix) {
		return c.output(msg)
	}
	if id, ok := resultOf(msg); ok {
		c.reply(id)
		return nil
	}
	var m struct {
		ID     *int
		Method string
		Params struct {
			ProcessID string
			Seq       uint64
			ExitCode  int
		}
		Error *struct{ Message string }
	}
	if err := json.Unmarshal(msg, &m); err != nil {
		return fmt.Errorf("message %.100q: %w", msg, err)
	}
	p := c.procs[m.Params.ProcessID]
	switch {
	case m.ID != nil && m.Error != nil:
		return errors.New(m.Error.Message)
	case m.ID != nil:
		c.reply(*m.ID)
	case p != nil && m.Method == "process/exited":
		p.code = m.Params.ExitCode
		return c.event(p, m.Params.Seq)
	case p != nil && m.Method == "process/closed":
		p.last = m.Params.Seq
		return c.event(p, m.Params.Seq)
	}
	return nil
}

func (c *client) reply(id int) {
	c.answered++
	if id == c.awaited {
		c.awaited = 0
	}
}

// resultOf returns the id of a message that begins like the result of any server. It does
// not decode the rest.
func resultOf(msg []byte) (id int, ok bool) {
	rest, ok1 := bytes.CutPrefix(msg, []byte(`{"id":`))
	digits, rest, ok2 := bytes.Cut(rest[:min(len(rest), 32)], []byte(","))
	id, err := strconv.Atoi(string(digits))
	return id, ok1 && ok2 && err == nil && bytes.HasPrefix(rest, []byte(`"result":`))
}

// output reads the members of an output event that count, and does not decode the rest.
func (c *client) output(msg []byte) error {
	id, ok1 := member(msg, `"processId":"`, '"')
	digits, ok2 := member(msg, `"seq":`, ',')
	encoded, ok3 := member(msg, `"chunk":"`, '"')
	seq, err := strconv.ParseUint(string(digits), 10, 64)
	if !ok1 || !ok2 || !ok3 || err != nil {
		return fmt.Errorf("cannot read %.200q", msg)
	}
	p := c.procs[string(id)]
	if p == nil {
		return nil
	}
	padding := len(encoded) - len(bytes.TrimRight(encoded, "="))
	p.bytes += int64(base64.StdEncoding.DecodedLen(len(encoded)) - padding)
	p.chunks++
	return c.event(p, seq)
}

func member(msg []byte, name string, end byte) ([]byte, bool) {
	_, rest, ok := bytes.Cut(msg, []byte(name))
	i := bytes.IndexByte(rest, end)
	return rest[:max(0, i)], ok && i >= 0
}

// event counts an event of a process.
func (c *client) event(p *proc, seq uint64) error {
	p.events++
	p.sum += seq
	if p.last == 0 || p.events < p.last {
		return nil
	}
	if p.sum != p.last*(p.last+1)/2 {
		return fmt.Errorf("process %s: the numbers of its %d events have gaps or repeats", p.id, p.last)
	}
	p.closed = true
	c.closed++
	delete(c.procs, p.id)
	return nil
}
