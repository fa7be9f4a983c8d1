package server

import (
	"sync/atomic"

	"execserver/internal/auth"
	"execserver/internal/stream"
	"execserver/transport"
)

// maxOwnStreams bounds the streams of one user, so that there is room for another one.
const maxOwnStreams = maxStreams / 2

// maxStreams bounds the streams of a server. Each can hold 8 MiB.
const maxStreams = 64

func (s *Server) newStreams() *stream.Server {
	return stream.NewServer(stream.ServerOptions{
		Handle: s.serveStream, Keep: s.opts.StreamKeep, MaxStreams: maxOwnStreams, MaxAll: maxStreams,
	})
}

// serveStreamLink serves a connection that is a link of a stream, until it ends. leave ends the wait for a
// shutdown, which until then closes the connection.
func (s *Server) serveStreamLink(u *unixConn, leave func() bool) {
	defer u.pending.done()
	defer leave()
	if u.refusal != nil {
		s.streams.Refuse(u, stream.Denied)
		return
	}
	attached := false
	err := s.streams.ServeLink(u.principal.Name, u, func() {
		attached = u.pending.done() && leave() // or it is being closed
	})
	if !attached {
		s.refusals.add(RefusedHandshake, u.principal.Name, "a link of a stream: "+err.Error())
		return
	}
	s.log.Info("link of a stream ended", "principal", u.principal.Name, "reason", err)
}

// serveStream serves a stream, which is one connection, whatever becomes of its links.
func (s *Server) serveStream(c *stream.Conn) {
	of := (*auth.Peers)(s.opts.Peers).Principal(c.Owner())
	_ = s.serveAdmitted(newStreamConn(c, s.opts.MaxMessageBytes), of, nil) // which logs how it ends
}

// streamConn is a connection over a stream, with one message to a line. The other end of the stream
// acknowledges what its program has read, so what waits in the stream does not count as received.
type streamConn struct {
	lines
	stream   *stream.Conn
	received atomic.Uint64
}

// lines is what transport.NewLines returns.
type lines interface {
	transport.Conn
	transport.HalfCloser
	transport.Limited
	transport.Growing
	transport.BinaryCarrier
}

func newStreamConn(c *stream.Conn, limit int64) *streamConn {
	s := &streamConn{stream: c}
	s.lines = transport.NewLines("stream over a "+unixRemote, counted{s}, c, c.Close, limit).(lines)
	return s
}

// counted reads from the stream.
type counted struct{ *streamConn }

func (r counted) Read(b []byte) (int, error) {
	n, err := r.stream.Read(b)
	r.received.Add(uint64(n))
	return n, err
}

// Ping implements transport.Pinger.
func (s *streamConn) Ping(payload uint64) error {
	s.stream.Confirm(payload)
	return nil
}

// OnPong implements transport.Pinger.
func (s *streamConn) OnPong(f func(payload uint64)) { s.stream.OnConfirm(f) }

// Received implements transport.Pinger.
func (s *streamConn) Received() uint64 { return s.received.Load() }

// lasts reports whether a connection outlasts the links that it is made of.
func lasts(conn transport.Conn) bool {
	_, ok := conn.(*streamConn)
	return ok
}
