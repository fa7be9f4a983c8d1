package fleet

import (
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"execserver/fleet/natstransport"
	"execserver/protocol"
	"execserver/transport"
)

// relay passes the messages of a client on to a machine, and the machine's to the client,
// until either side ends. It ends both.
//
// A ping of the machine goes to the client and the pong back, because a pong acknowledges
// what was sent before: the gateway must not say so of what it has only in its own hands.
// Each direction holds one message at a time; a side that does not read stops the other.
type relay struct {
	client  transport.Conn
	machine *natstransport.Conn
	// peek, if not nil, sees the first message of the machine that is not a notification. An
	// error ends the relay, and the client does not get the message.
	peek   func(msg []byte) error
	looks  int // how many messages were parsed to find it
	count  func(toMachine bool, bytes int)
	hold   func(bytes int64) error // memory of large messages, if bytes is above 0; else gives it back
	once   sync.Once
	reason transport.Reason // of the end; valid when run has returned
}

// run returns when both directions have ended, and why. first are messages of the client that
// were read already.
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
	wg.Go(func() { r.hurry(over) })
	err := r.toClient()
	r.end(reasonOf(err, lostMachine))
	close(over)
	wg.Wait()
	return r.reason
}

// lostMachine is what a client learns when the connection to its machine was lost.
const lostMachine = "the connection to the machine was lost"

// lastTimeout is how long a client may take to read what its machine sent before its
// connection ended.
const lastTimeout = 5 * time.Second

// hurry ends the relay of a client that does not read, some time after its machine's
// connection has ended.
func (r *relay) hurry(over <-chan struct{}) {
	select {
	case <-over:
		return
	case <-r.machine.Done():
	}
	timer := time.NewTimer(lastTimeout)
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

// reasonError is an error of peek that says how the relay ends.
type reasonError struct{ transport.Reason }

func (e *reasonError) Error() string { return e.Text }

func (r *relay) toMachine(first [][]byte) error {
	buf := r.buffer(r.client)
	defer buf.free()
	if len(first) == 0 {
		msg, err := readGreeting(r.client)
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
		if err := r.look(msg); err != nil {
			return err
		}
		if err := r.client.Write(msg); err != nil {
			return err
		}
		r.count(false, len(msg))
		buf.written()
	}
}

// maxLooks is how many messages of a machine are parsed to find its first answer, which
// usually is the first one.
const maxLooks = 16

// look shows peek the first answer of the machine.
func (r *relay) look(msg []byte) error {
	if r.peek == nil {
		return nil
	}
	if isAnswer(msg) {
		peek := r.peek
		r.peek = nil
		return peek(msg)
	}
	if r.looks++; r.looks == maxLooks {
		r.peek = nil
	}
	return nil
}

// greeting is the first message of a client, as far as a gateway reads it.
type greeting struct {
	Method string `json:"method"`
	Params struct {
		Resume  string `json:"resumeSessionId"`
		Observe string `json:"observeSessionId"`
	} `json:"params"`
}

// maxGreeting bounds the first message of a client, as a server does: memory is for those who
// say who they are.
const maxGreeting = 64 << 10

// readGreeting reads the first message of a client.
func readGreeting(client transport.Conn) ([]byte, error) {
	if limited, ok := client.(transport.Limited); ok {
		limited.LimitTotal(maxGreeting)
		defer limited.LimitTotal(0)
	}
	return client.Read(nil)
}

// sessionOf returns the session that a client's first message names, or "".
func sessionOf(msg []byte) string {
	var g greeting
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

// isAnswer reports whether a message of a machine answers a request: for all that a gateway
// knows, the first one answers initialize.
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
