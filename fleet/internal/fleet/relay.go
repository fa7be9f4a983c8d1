package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"execserver/fleet/natstransport"
	"execserver/protocol"
	"execserver/transport"
)

// relay relays messages between a client and a machine until either side ends. Then it ends
// both.
//
// It relays a ping of the machine to the client, and the pong back, because a pong
// acknowledges everything sent before: the gateway must not acknowledge messages that the
// client has not received. Each direction holds one message at a time, so a side that does not
// read blocks the other.
type relay struct {
	client  transport.Conn
	machine *natstransport.Conn
	// peek, if not nil, is called with the first message of the machine that is not a
	// notification. An error ends the relay, and the client does not receive the message.
	peek     func(msg []byte) error
	examined int // how many messages were parsed to find it
	count    func(toMachine bool, bytes int)
	reserve  func(bytes int64) error // memory of large messages, if bytes is above 0; else gives it back
	once     sync.Once
	reason   transport.Reason // of the end; valid when run has returned
}

// run relays until both directions have ended, and returns the reason. first are messages of
// the client that were read already.
func (r *relay) run(first ...[]byte) transport.Reason {
	pinger, pings := r.client.(transport.Pinger)
	if pings {
		var asked atomic.Int64 // pings without a pong: a client may not send more of those
		r.machine.OnPing(func(payload uint64) {
			asked.Add(1)
			_ = pinger.Ping(payload) // a Read notices the end
		})
		pinger.OnPong(func(payload uint64) {
			if asked.Add(-1) < 0 {
				asked.Add(1)
				return
			}
			_ = r.machine.Pong(payload)
		})
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		err := r.toMachine(first)
		r.end(reasonOf(err, "the client's connection was lost"))
	})
	over := make(chan struct{})
	wg.Go(func() { r.limitDrain(over) })
	err := r.toClient()
	r.end(reasonOf(err, lostMachine))
	close(over)
	wg.Wait()
	return r.reason
}

// lostMachine is the reason for a client when the connection to its machine was lost.
const lostMachine = "the connection to the machine was lost"

// drainTimeout bounds how long a client may take to read the messages that its machine sent
// before the connection ended.
const drainTimeout = 5 * time.Second

// limitDrain ends the relay of a client that does not read, drainTimeout after its machine's
// connection has ended.
func (r *relay) limitDrain(over <-chan struct{}) {
	select {
	case <-over:
		return
	case <-r.machine.Done():
	}
	timer := time.NewTimer(drainTimeout)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
		r.end(transport.Reason{Code: transport.CodeGoingAway, Text: lostMachine})
	}
}

// end ends both connections for a reason.
func (r *relay) end(reason transport.Reason) {
	r.once.Do(func() {
		r.reason = reason
		_ = r.machine.Close(reason)
		_ = r.client.Close(reason)
	})
}

// reasonOf returns the reason that a peer gave for the end, to be passed on.
func reasonOf(err error, lost string) transport.Reason {
	if peer, ok := errors.AsType[*transport.PeerClosedError](err); ok {
		return peer.Reason
	}
	if failed, ok := errors.AsType[*reasonError](err); ok {
		return failed.Reason
	}
	if tooLarge, ok := errors.AsType[*transport.TooLargeError](err); ok {
		return transport.Reason{Code: transport.CodeTooBig, Text: tooLarge.Error()}
	}
	return transport.Reason{Code: transport.CodeGoingAway, Text: lost}
}

// reasonError is an error of peek with the reason for the end of the relay.
type reasonError struct{ transport.Reason }

func (e *reasonError) Error() string { return e.Text }

func (r *relay) toMachine(first [][]byte) error {
	buf := r.buffer(r.client)
	defer buf.free()
	if len(first) == 0 {
		msg, err := readFirstMessage(r.client)
		if err != nil {
			return err
		}
		r.count(true, len(msg))
		first = [][]byte{msg}
	}
	if err := r.machine.Write(first...); err != nil {
		return err
	}
	first = nil
	for {
		msg, err := buf.read(r.client)
		if err != nil {
			return err
		}
		if err := r.machine.Write(msg); err != nil {
			return err
		}
		r.count(true, len(msg))
		buf.written()
	}
}

func (r *relay) toClient() error {
	buf := r.buffer(r.machine)
	defer buf.free()
	for {
		msg, err := buf.read(r.machine)
		if err != nil {
			return err
		}
		if err := r.examine(msg); err != nil {
			return err
		}
		if err := r.client.Write(msg); err != nil {
			return err
		}
		r.count(false, len(msg))
		buf.written()
	}
}

// maxExamined is how many messages of a machine are parsed to find its first answer, which
// usually is the first one.
const maxExamined = 16

// look shows peek the first answer of the machine.
func (r *relay) examine(msg []byte) error {
	if r.peek == nil {
		return nil
	}
	if isAnswer(msg) {
		peek := r.peek
		r.peek = nil
		return peek(msg)
	}
	if r.examined++; r.examined == maxExamined {
		r.peek = nil
	}
	return nil
}

// greeting is the first message of a client, as far as a gateway reads it.
type firstMessage struct {
	Method string `json:"method"`
	Params struct {
		Resume  string `json:"resumeSessionId"`
		Observe string `json:"observeSessionId"`
	} `json:"params"`
}

// maxFirstMessage bounds the first message of a client, as in a server: clients get more memory
// only after initialize.
const maxFirstMessage = 64 << 10

// readFirstMessage reads the first message of a client.
func readFirstMessage(client transport.Conn) ([]byte, error) {
	if limited, ok := client.(transport.Limited); ok {
		limited.LimitTotal(maxFirstMessage)
		defer limited.LimitTotal(0)
	}
	return client.Read(nil)
}

// sessionOf returns the session that a client's first message names, or "".
func sessionOf(msg []byte) string {
	var g firstMessage
	if json.Unmarshal(msg, &g) != nil || g.Method != protocol.MethodInitialize {
		return ""
	}
	if g.Params.Resume != "" {
		return g.Params.Resume
	}
	if g.Params.Observe == protocol.NoSession {
		return ""
	}
	return g.Params.Observe
}

// maxAnswer bounds the messages of a machine that are parsed to find its first answer.
const maxAnswer = 64 << 10

// isAnswer reports whether a message of a machine answers a request. The gateway assumes that
// the first one answers initialize.
func isAnswer(msg []byte) bool {
	var answer struct {
		Method string `json:"method"`
	}
	return len(msg) <= maxAnswer && json.Unmarshal(msg, &answer) == nil && answer.Method == ""
}

// sessionIn returns the session in a machine's answer to initialize, or "".
func sessionIn(msg []byte) string {
	var answer struct {
		Result struct {
			SessionID string `json:"sessionId"`
		} `json:"result"`
	}
	if json.Unmarshal(msg, &answer) != nil || answer.Result.SessionID == protocol.NoSession {
		return ""
	}
	return answer.Result.SessionID
}

// maxMessageMemory bounds the memory of large messages that a gateway relays, in bytes.
const maxMessageMemory = 1 << 30

// keptBuffer is the size of a buffer that a direction keeps for the next message, and that does
// not count toward maxMessageMemory.
const keptBuffer = 256 << 10

// A message waits at most reserveTimeout for memory, because others that have some may also be
// waiting for more. Then its connection ends, and the client reconnects.
const (
	reserveTimeout = 5 * time.Second
	reservePause   = 50 * time.Millisecond
)

// buffer is the memory of one direction of a relay, for one message at a time.
type buffer struct {
	msg     []byte
	size    int64 // of the memory of the message
	held    int64 // how much of size counts in maxMessageMemory
	reserve func(bytes int64) error
}

// buffer returns the memory for the messages of one side.
func (r *relay) buffer(from transport.Conn) *buffer {
	b := &buffer{reserve: r.reserve}
	if growing, ok := from.(transport.Growing); ok {
		growing.OnGrow(b.grow)
	}
	return b
}

// read reads a message. It is valid until the next call of a method.
func (b *buffer) read(from transport.Conn) (msg []byte, err error) {
	b.msg, err = from.Read(b.msg)
	return b.msg, err
}

// written frees a large buffer after its message has been written: the next message may take
// long to arrive.
func (b *buffer) written() {
	if cap(b.msg) > keptBuffer {
		b.free()
	}
}

func (b *buffer) grow(bytes int64) error {
	if more := b.size + bytes - keptBuffer - b.held; more > 0 {
		if err := b.reserve(more); err != nil {
			return err
		}
		b.held += more
	}
	b.size += bytes
	return nil
}

// free drops the memory.
func (b *buffer) free() {
	if b.held > 0 {
		_ = b.reserve(-b.held) // giving back does not fail
	}
	b.msg, b.size, b.held = nil, 0, 0
}

// reserve reserves memory for large messages, or releases it if bytes is negative.
func (v *clientConn) reserve(bytes int64) error {
	if bytes < 0 {
		v.held.give(v.by.Principal, -bytes)
		return nil
	}
	for giveUp := time.Now().Add(reserveTimeout); ; {
		limit := v.held.take(v.by.Principal, v.several(), bytes)
		if limit == 0 {
			return nil
		}
		if time.Now().After(giveUp) || !sleep(v.ctx, reservePause) {
			return &reasonError{transport.Reason{
				Code: transport.CodeTryAgainLater,
				Text: fmt.Sprintf("the gateway has its limit of %d bytes of messages on their way; try again", limit),
			}}
		}
	}
}
