package transport

import (
	"io"
	"sync"
)

// memoryQueue is how many messages may wait in each direction of a Pipe.
const memoryQueue = 16

// pipeEnd is one end of a Pipe.
type pipeEnd struct {
	limit    int64
	incoming <-chan []byte
	outgoing chan<- []byte
	done     *pipeDone // shared by both ends
	mine     chan struct{}
	once     sync.Once
}

type pipeDone struct {
	once sync.Once
	ch   chan struct{}
}

// Pipe returns the two ends of a connection in memory. limit is the size in bytes of the
// largest message that the server's end accepts; 0 means DefaultMaxMessageBytes, which is
// also the limit of the client's end.
func Pipe(limit int64) (client, server Conn) {
	if limit <= 0 {
		limit = DefaultMaxMessageBytes
	}
	toServer, toClient := make(chan []byte, memoryQueue), make(chan []byte, memoryQueue)
	done := &pipeDone{ch: make(chan struct{})}
	end := func(in <-chan []byte, out chan<- []byte, limit int64) *pipeEnd {
		return &pipeEnd{
			limit:    limit,
			incoming: in, outgoing: out,
			done: done, mine: make(chan struct{}),
		}
	}
	return end(toClient, toServer, DefaultMaxMessageBytes), end(toServer, toClient, limit)
}

// AcceptBinary implements BinaryCarrier.
func (p *pipeEnd) AcceptBinary() {}

// Remote implements Conn.
func (p *pipeEnd) Remote() string { return "in-process connection" }

// Read implements Conn. It still returns the messages that the peer wrote before it
// closed.
func (p *pipeEnd) Read(buf []byte) ([]byte, error) {
	select {
	case <-p.mine:
		return nil, ErrClosed
	default:
	}
	select {
	case msg := <-p.incoming:
		return p.receive(buf, msg)
	case <-p.mine:
		return nil, ErrClosed
	case <-p.done.ch:
		select {
		case msg := <-p.incoming:
			return p.receive(buf, msg)
		default:
			return nil, io.EOF
		}
	}
}

func (p *pipeEnd) receive(buf, msg []byte) ([]byte, error) {
	if int64(len(msg)) > p.limit {
		return nil, oversize(p.limit, int64(len(msg)), msg)
	}
	return append(buf[:0], msg...), nil
}

// Write implements Conn.
func (p *pipeEnd) Write(messages ...[]byte) error {
	for _, msg := range messages {
		select {
		case <-p.done.ch:
			return ErrClosed
		default:
		}
		select {
		case p.outgoing <- append([]byte(nil), msg...):
		case <-p.done.ch:
			return ErrClosed
		}
	}
	return nil
}

// Close implements Conn.
func (p *pipeEnd) Close(Reason) error {
	p.once.Do(func() { close(p.mine) })
	p.done.once.Do(func() { close(p.done.ch) })
	return nil
}
