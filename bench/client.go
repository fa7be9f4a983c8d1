//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"execserver/protocol"
	"execserver/transport"
)

// client is a connection that uses as little processor time as possible, because the
// client and the server share the machine. Whoever waits for something reads, so with a
// single goroutine nothing passes from one goroutine to another; nobody reads while
// nobody waits. The client checks that the events of every process arrive without gaps
// and repeats.
type client struct {
	conn    transport.Conn
	reading chan struct{} // holds a token while nobody reads
	buf     []byte        // of the goroutine that reads
	nextBuf []byte        // what buf becomes after a large reply
	hello   []byte        // the reply to initialize

	writing sync.Mutex

	mu      sync.Mutex
	nextID  int
	waiting map[int]chan reply
	procs   map[string]*proc
}

type reply struct {
	text []byte // the whole message; return a large one with reuse
	err  error
}

// proc is the state of a process, as far as its events have arrived.
type proc struct {
	client   *client
	id       string
	seq      uint64
	bytes    int64
	chunks   int64
	exitCode int
	pending  map[uint64]event // events that arrived before their turn
	output   func(encoded []byte)
	done     chan struct{} // closed after the event closed
}

type event struct {
	kind  byte // o, e or c
	bytes int
	code  int
}

func dial(ctx context.Context, url string) (*client, error) {
	conn, err := transport.Dial(ctx, url, &transport.DialOptions{MaxMessageBytes: 1 << 30})
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn, reading: make(chan struct{}, 1), waiting: map[int]chan reply{}, procs: map[string]*proc{}}
	c.reading <- struct{}{}
	c.buf = make([]byte, 0, 4<<10)
	if c.hello, err = c.call(ctx, protocol.MethodInitialize, protocol.InitializeParams{ClientName: "bench"}); err != nil {
		c.close()
		return nil, err
	}
	if err := c.send([]byte(`{"method":"initialized"}`)); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *client) close() {
	_ = c.conn.Close(transport.Reason{})
}

func (c *client) send(msg []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.conn.Write(msg)
}

// request is an encoded request that one goroutine may send again and again.
type request struct {
	client *client
	id     []byte // within text
	text   []byte
}

func (c *client) request(method string, params any) (*request, error) {
	var text []byte
	switch p := params.(type) {
	case json.RawMessage:
		text = p
	case protocol.Appender:
		text = p.AppendJSON(nil)
	default:
		var err error
		if text, err = json.Marshal(params); err != nil {
			return nil, err
		}
	}
	const before, width = len(`{"id":`), 10
	msg := fmt.Appendf(nil, `{"id":%*d,"method":%q,"params":`, width, 0, method)
	msg = append(append(msg, text...), '}')
	return &request{client: c, id: msg[before : before+width], text: msg}, nil
}

// begin sends the request under a new id; await waits for its reply.
func (r *request) begin() (chan reply, error) {
	c := r.client
	answer := make(chan reply, 1)
	c.mu.Lock()
	c.nextID++
	copy(r.id, fmt.Sprintf("%*d", len(r.id), c.nextID))
	c.waiting[c.nextID] = answer
	c.mu.Unlock()
	return answer, c.send(r.text)
}

// call sends the request and returns the message of its result.
func (r *request) call(ctx context.Context) ([]byte, error) {
	answer, err := r.begin()
	if err != nil {
		return nil, err
	}
	return r.client.await(ctx, answer)
}

// begin sends a request; await waits for its reply.
func (c *client) begin(method string, params any) (chan reply, error) {
	r, err := c.request(method, params)
	if err != nil {
		return nil, err
	}
	return r.begin()
}

// await waits for the answer to a request.
func (c *client) await(ctx context.Context, answer chan reply) ([]byte, error) {
	r, err := readUntil(ctx, c, answer)
	return r.text, errors.Join(err, r.err)
}

// readUntil waits until ready has a value. When several goroutines wait, one of them
// reads the messages for all.
func readUntil[T any](ctx context.Context, c *client, ready <-chan T) (v T, err error) {
	stop := context.AfterFunc(ctx, c.close)
	defer stop()
	select {
	case v = <-ready:
		return v, nil
	case <-c.reading:
		defer func() { c.reading <- struct{}{} }()
	}
	for {
		select {
		case v = <-ready:
			return v, nil
		default:
		}
		if c.buf, err = c.conn.Read(c.buf[:0]); err == nil {
			err = c.message(c.buf)
		}
		if err != nil {
			return v, errors.Join(err, ctx.Err())
		}
	}
}

// call sends a request and returns the message of its result.
func (c *client) call(ctx context.Context, method string, params any) ([]byte, error) {
	r, err := c.request(method, params)
	if err != nil {
		return nil, err
	}
	text, err := r.call(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	return text, nil
}

// newProc returns the params of a start and the state of the process.
func (c *client) newProc(tty bool, argv ...string) (*proc, protocol.StartParams) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nextID++
	p := &proc{client: c, id: "p" + strconv.Itoa(c.nextID), done: make(chan struct{})}
	c.procs[p.id] = p
	return p, protocol.StartParams{
		ProcessID: p.id, Argv: argv, Cwd: protocol.URIPath("/"), TTY: tty,
		Env: map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"},
	}
}

// start starts a process. output, if not nil, receives its chunks in base64.
func (c *client) start(ctx context.Context, tty bool, output func([]byte), argv ...string) (*proc, error) {
	p, params := c.newProc(tty, argv...)
	p.output = output
	_, err := c.call(ctx, protocol.MethodStart, params)
	return p, err
}

// wait waits until the process has closed, and checks that its exit code is 0.
func (p *proc) wait(ctx context.Context) error {
	_, err := readUntil(ctx, p.client, p.done)
	if err == nil && p.exitCode != 0 {
		err = fmt.Errorf("%s: exit code %d", p.id, p.exitCode)
	}
	return err
}

var outputPrefix = []byte(`{"method":"process/output"`)

func (c *client) message(msg []byte) error {
	if bytes.HasPrefix(msg, outputPrefix) {
		return c.outputEvent(msg)
	}
	if id, ok := resultOf(msg); ok {
		return c.reply(id, msg, nil)
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
	switch {
	case m.Method == "process/exited":
		return c.event(m.Params.ProcessID, m.Params.Seq, event{kind: 'e', code: m.Params.ExitCode}, nil)
	case m.Method == "process/closed":
		return c.event(m.Params.ProcessID, m.Params.Seq, event{kind: 'c'}, nil)
	case m.ID == nil:
		return nil
	case m.Error != nil:
		return c.reply(*m.ID, msg, errors.New(m.Error.Message))
	}
	return c.reply(*m.ID, msg, nil)
}

// resultOf returns the id of a message that begins like the result of any server. It does
// not decode the rest.
func resultOf(msg []byte) (id int, ok bool) {
	rest, ok1 := bytes.CutPrefix(msg, []byte(`{"id":`))
	digits, rest, ok2 := bytes.Cut(rest[:min(len(rest), 32)], []byte(","))
	id, err := strconv.Atoi(string(digits))
	return id, ok1 && ok2 && err == nil && bytes.HasPrefix(rest, []byte(`"result":`))
}

// reply passes the reply to a request to the goroutine that waits for it.
func (c *client) reply(id int, msg []byte, err error) error {
	c.mu.Lock()
	answer := c.waiting[id]
	delete(c.waiting, id)
	c.mu.Unlock()
	if answer == nil {
		return fmt.Errorf("reply to nothing: %.100q", msg)
	}
	r := reply{text: msg, err: err}
	if len(msg) > largeReply {
		c.buf, c.nextBuf = c.nextBuf, nil
	} else {
		r.text = bytes.Clone(msg)
	}
	answer <- r
	return nil
}

// largeReply is the size from which it pays to reuse memory.
const largeReply = 4096

// reuse gives the client back the memory of a reply. One goroutine calls it at a time.
func (c *client) reuse(text []byte) {
	if len(text) > largeReply {
		c.nextBuf = text[:0]
	}
}

// outputEvent reads the members that count, and does not decode the rest.
func (c *client) outputEvent(msg []byte) error {
	id, ok1 := member(msg, `"processId":"`, '"')
	digits, ok2 := member(msg, `"seq":`, ',')
	encoded, ok3 := member(msg, `"chunk":"`, '"')
	seq, err := strconv.ParseUint(string(digits), 10, 64)
	if !ok1 || !ok2 || !ok3 || err != nil {
		return fmt.Errorf("cannot read %.200q", msg)
	}
	n := len(encoded) / 4 * 3
	if bytes.HasSuffix(encoded, []byte("==")) {
		n -= 2
	} else if bytes.HasSuffix(encoded, []byte("=")) {
		n--
	}
	return c.event(string(id), seq, event{kind: 'o', bytes: n}, encoded)
}

func member(msg []byte, name string, end byte) ([]byte, bool) {
	i := bytes.Index(msg, []byte(name))
	if i < 0 {
		return nil, false
	}
	value := msg[i+len(name):]
	j := bytes.IndexByte(value, end)
	if j < 0 {
		return nil, false
	}
	return value[:j], true
}

// event handles an event of a process. Some servers send events out of order.
func (c *client) event(id string, seq uint64, e event, encoded []byte) error {
	c.mu.Lock()
	p := c.procs[id]
	c.mu.Unlock()
	if p == nil {
		return nil
	}
	if e.kind == 'o' && p.output != nil {
		p.output(encoded)
	}
	if seq <= p.seq {
		return fmt.Errorf("process %s: event %d came twice", id, seq)
	}
	if seq > p.seq+1 {
		if p.pending == nil {
			p.pending = map[uint64]event{}
		}
		p.pending[seq] = e
		return nil
	}
	for ok := true; ok; e, ok = p.pending[p.seq+1] {
		p.seq++
		delete(p.pending, p.seq)
		p.handle(e)
	}
	return nil
}

func (p *proc) handle(e event) {
	switch e.kind {
	case 'o':
		p.bytes += int64(e.bytes)
		p.chunks++
	case 'e':
		p.exitCode = e.code
	case 'c':
		p.client.mu.Lock()
		delete(p.client.procs, p.id)
		p.client.mu.Unlock()
		close(p.done)
	}
}
