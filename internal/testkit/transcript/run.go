package transcript

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Server is the server of one scenario, which has no other clients.
type Server interface {
	// Connect opens a connection. If the server refuses it, the error is a
	// *RefusedError.
	Connect() (Conn, error)
}

// Conn is the client's end of a connection. One goroutine may call Receive while another
// one calls the other methods.
type Conn interface {
	Send(frame Frame, message []byte) error

	// Receive returns the next message. If the server or End has ended the connection,
	// the error is an *EndedError.
	Receive() ([]byte, error)

	// End tells the server in the orderly way of the transport that the client sends
	// nothing more. Receive still works.
	End(code int, reason string) error

	// Drop breaks the connection. It unblocks Receive.
	Drop()
}

// Muter is a Conn that can stop reading from the network, like a peer that has vanished.
type Muter interface {
	Mute(bool)
}

// EndedError says that the server has ended a connection.
type EndedError struct {
	Code   int // 0: the transport has no codes
	Reason string
}

func (e *EndedError) Error() string { return fmt.Sprintf("connection ended: %d %q", e.Code, e.Reason) }

// RefusedError says that the server did not accept a connection.
type RefusedError struct {
	Status int
	Text   string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("connection refused: %d %q", e.Status, e.Text)
}

// Options of Run.
type Options struct {
	Dir string // for the scenario's files; it exists and is empty

	// Reference compares less strictly, for the released server. It ignores the texts
	// of errors, the numbers of events, the order of one process's events, and members
	// that the released server does not send.
	Reference bool

	// Update replaces the expectations that the server does not meet with the messages
	// that it sends.
	Update bool

	Timeout time.Duration // of waiting for one message; default a minute
}

// updateQuiet is the time without a message after which an update assumes that the server
// has sent everything.
const updateQuiet = 150 * time.Millisecond

// runner runs one scenario.
type runner struct {
	scenario *Scenario
	server   Server
	opts     Options
	vars     variables
	web      *web // nil: the scenario needs none

	conns    map[string]*link
	arrivals chan arrival
	done     chan struct{} // closed at the end: nobody takes arrivals any more

	block    []*pending
	stage    int
	blockAt  int        // index of the line after the last client line
	recorded []recorded // of the block, for an update
	edits    []edit
}

// link is one open connection.
type link struct {
	name    string
	conn    Conn
	gone    bool // dropped here, or ended by the server as expected
	resumed bool // numbers of events need not begin at 1: it resumes, observes or takes over
	seqs    map[string]uint64
	retry   *retrying

	unanswered map[string]int // ids of requests, and the lines that sent them
	started    []string       // processes
	closed     map[string]bool
}

type retrying struct {
	message string
	id      string
	code    int
	until   time.Time
}

// arrival is a message, or the end of a connection.
type arrival struct {
	link *link
	data []byte
	err  error
}

// pending is an expectation that has not been met.
type pending struct {
	step  step
	stage int
	rest  string // output: what has not come yet
	met   bool
}

// Run runs a scenario. The error names the line that the server did not meet.
func (s *Scenario) Run(server Server, opts Options) error {
	if opts.Timeout <= 0 {
		opts.Timeout = time.Minute
	}
	r := &runner{
		scenario: s,
		server:   server,
		opts:     opts,
		vars:     variables{"dir": opts.Dir, "uri": "file://" + opts.Dir},
		conns:    make(map[string]*link),
		arrivals: make(chan arrival, 1024),
		done:     make(chan struct{}),
	}
	defer r.stop()
	if err := r.startWeb(); err != nil {
		return err
	}
	for _, st := range s.steps {
		if err := r.step(st); err != nil {
			return err
		}
	}
	if err := r.await(len(s.lines)); err != nil {
		return err
	}
	if opts.Update {
		s.apply(r.edits)
		return nil
	}
	return r.finish()
}

func (r *runner) stop() {
	close(r.done)
	for _, l := range r.conns {
		l.conn.Drop()
	}
	if r.web != nil {
		r.web.close()
	}
}

func (r *runner) step(st step) error {
	switch st.kind {
	case expect, closed, output:
		if _, err := r.link(st.conn); err != nil {
			return r.fail(st.at, "%s", err)
		}
		rest, err := r.vars.expand(st.text)
		if st.kind == output && err != nil {
			return r.fail(st.at, "%s", err)
		}
		r.block = append(r.block, &pending{step: st, stage: r.stage, rest: rest})
		return nil
	case then:
		r.stage++
		return nil
	}
	if err := r.await(st.at); err != nil {
		return err
	}
	r.blockAt = st.at + 1
	if err := r.act(st); err != nil {
		return r.fail(st.at, "%s", err)
	}
	return nil
}

// act performs a line of the client.
func (r *runner) act(st step) error {
	switch st.kind {
	case send:
		return r.send(st)
	case handshake:
		return r.handshake(st)
	case open:
		_, err := r.link(st.conn)
		return err
	case closeConn:
		l, err := r.link(st.conn)
		if err != nil {
			return err
		}
		reason := ""
		if st.reason != nil {
			reason = *st.reason
		}
		return l.conn.End(max(st.code, 1000*btoi(st.code == 0)), reason)
	case drop:
		l, err := r.link(st.conn)
		if err != nil {
			return err
		}
		l.gone = true
		l.conn.Drop()
		delete(r.conns, st.conn)
		return nil
	case mute:
		l, err := r.link(st.conn)
		if err != nil {
			return err
		}
		m, ok := l.conn.(Muter)
		if !ok {
			return errors.New("this transport cannot be muted")
		}
		m.Mute(st.words[0] == "mute")
		return nil
	case refused:
		return r.refused(st)
	case file:
		return r.file(st)
	case webPage:
		return r.page(st)
	}
	panic("transcript: unknown step")
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// link returns the connection with a name, and opens it at the first use.
func (r *runner) link(name string) (*link, error) {
	if l := r.conns[name]; l != nil {
		return l, nil
	}
	conn, err := r.server.Connect()
	if err != nil {
		return nil, err
	}
	l := &link{
		name: name, conn: conn,
		seqs: make(map[string]uint64), unanswered: make(map[string]int), closed: make(map[string]bool),
	}
	r.conns[name] = l
	go func() {
		for {
			data, err := conn.Receive()
			select {
			case r.arrivals <- arrival{l, data, err}:
			case <-r.done:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return l, nil
}

func (r *runner) send(st step) error {
	l, err := r.link(st.conn)
	if err != nil {
		return err
	}
	text := st.text
	if st.raw {
		text, err = r.vars.expand(text)
	} else {
		text, err = r.vars.message(text)
	}
	if err != nil {
		return err
	}
	for _, later := range []string{`"resumeSessionId":"`, `"observeSessionId":"`, `"session/takeOver"`} {
		if strings.Contains(text, later) {
			l.resumed = true
			clear(l.seqs)
		}
	}
	l.note(text, st.at)
	l.retry = nil
	if st.retry != 0 {
		message, _ := decode([]byte(text))
		envelope, _ := message.(map[string]any)
		l.retry = &retrying{text, show(envelope["id"]), st.retry, time.Now().Add(r.opts.Timeout)}
	}
	message := []byte(text)
	if st.frame == Binary && !st.raw {
		message = joinData(text, st.data)
	}
	return l.conn.Send(st.frame, message)
}

// note remembers the id of a request, which the server must answer.
func (l *link) note(text string, at int) {
	v, err := decode([]byte(text))
	message, _ := v.(map[string]any)
	method, _ := message["method"].(string)
	if err != nil || method == "" {
		return
	}
	switch id := message["id"].(type) {
	case string, json.Number:
		l.unanswered[show(id)] = at
	}
	params, _ := message["params"].(map[string]any)
	if process, ok := params["processId"].(string); ok && method == "process/start" {
		l.started = append(l.started, process)
	}
}

func (r *runner) handshake(st step) error {
	for _, line := range []string{
		`-> {"id":"handshake","method":"initialize","params":{"clientName":"transcript"}}`,
		`<- {"id":"handshake","result":{"protocolVersion":"exec-server.v0","sessionId":"$session` + st.conn + `","environmentInfo":"$any"}}`,
		`-> {"method":"initialized"}`,
	} {
		s, err := parseLine(line)
		if err != nil {
			return err
		}
		s.conn, s.at = st.conn, st.at
		if err := r.step(s); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) refused(st step) error {
	conn, err := r.server.Connect()
	if err == nil {
		conn.Drop()
		return errors.New("the connection was accepted")
	}
	var refusal *RefusedError
	if !errors.As(err, &refusal) {
		return err
	}
	if refusal.Status != st.code || st.reason != nil && refusal.Text != *st.reason {
		return refusal
	}
	return nil
}

// file makes a file in the scenario's directory.
func (r *runner) file(st step) error {
	path := filepath.Join(r.opts.Dir, st.words[1])
	argument, err := r.vars.expand(st.words[2])
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	switch st.words[0] {
	case "directory":
		return os.MkdirAll(path, 0o755)
	case "fifo":
		return makeFIFO(path)
	case "link":
		return os.Symlink(argument, path)
	case "mode":
		mode, err := strconv.ParseUint(argument, 8, 32)
		if err != nil {
			return err
		}
		return os.Chmod(path, os.FileMode(mode))
	}
	text, err := strconv.Unquote(argument)
	if err != nil {
		return fmt.Errorf("a file needs a quoted text: %w", err)
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// finish checks that the server sends nothing that the scenario does not mention: every
// request has its answer, a request with an unknown method is answered before any other
// message comes, and no process has further events.
func (r *runner) finish() error {
	if r.opts.Reference {
		return nil
	}
	for _, l := range r.conns {
		if l.gone {
			continue
		}
		for _, at := range l.unanswered {
			return r.fail(at, "the scenario does not mention the answer")
		}
		for range 3 { // an event may go out after every answer
			if err := r.ask(l, "end of transcript", nil, "error", "$any"); err != nil {
				return err
			}
		}
		for _, process := range l.started {
			if l.closed[process] || l.resumed {
				continue
			}
			params := map[string]any{"processId": process, "afterSeq": l.seqs[process]}
			if err := r.ask(l, "process/read", params, "result", "$end"); err != nil {
				continue // it was not started
			}
			result, _ := r.vars["end"].(map[string]any)
			delete(r.vars, "end")
			if want := strconv.FormatUint(l.seqs[process]+1, 10); show(result["nextSeq"]) != want {
				return fmt.Errorf("at the end, process %q has more to tell: %s", process, show(result))
			}
		}
	}
	return nil
}

// ask sends a request and returns its answer. No other message may come.
func (r *runner) ask(l *link, method string, params any, member string, value any) error {
	message, err := json.Marshal(map[string]any{"id": "end", "method": method, "params": params})
	if err != nil {
		return err
	}
	if err := l.conn.Send(Whole, message); err != nil {
		return fmt.Errorf("at the end, connection %q: %w", l.name, err)
	}
	want := step{kind: expect, conn: l.name, at: len(r.scenario.lines), text: "the end"}
	want.value = map[string]any{"id": "end", member: value}
	r.block = append(r.block, &pending{step: want})
	return r.await(len(r.scenario.lines))
}

// fail returns an error that names a line.
func (r *runner) fail(at int, format string, args ...any) error {
	text := "the end"
	if at < len(r.scenario.lines) {
		text = fmt.Sprintf("line %d: %s", at+1, r.scenario.lines[at])
	}
	return fmt.Errorf("%s\n\t%s", text, fmt.Sprintf(format, args...))
}
