package stream

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// ServerOptions are the options of a Server. Handle is required.
type ServerOptions struct {
	// Handle serves a new stream. The stream is closed when it returns.
	Handle func(*Conn)
	// Keep is how long a stream is kept without a link, in whole seconds. The default is 30
	// minutes, which are enough for a meal or a commute.
	Keep time.Duration
	// MaxStreams bounds the streams of each owner. The default is 64, because a stream can hold
	// twice the window, and few people run as many clients.
	MaxStreams int
	// MaxAll bounds the streams of all owners, and with them the memory. The default is 64, which
	// can hold 512 MiB.
	MaxAll int
}

// Server is the end of streams that accepts their links.
type Server struct {
	opts     ServerOptions
	instance [8]byte // the first half of all identifiers
	handlers sync.WaitGroup

	mu      sync.Mutex // taken after that of a Conn
	closed  bool
	streams map[[idSize]byte]*Conn
	count   map[string]int // of each owner
}

// NewServer returns a Server.
func NewServer(opts ServerOptions) *Server {
	if opts.Keep == 0 {
		opts.Keep = 30 * time.Minute
	}
	if opts.MaxStreams == 0 {
		opts.MaxStreams = 64
	}
	if opts.MaxAll == 0 {
		opts.MaxAll = 64
	}
	s := &Server{opts: opts, streams: make(map[[idSize]byte]*Conn), count: make(map[string]int)}
	_, _ = rand.Read(s.instance[:]) // never fails
	return s
}

// Serve serves a link of an owner to its end, and closes it. It returns why the link has ended.
// Only an owner's own links can resume a stream.
func (s *Server) Serve(owner string, rwc io.ReadWriteCloser) error {
	return s.ServeLink(owner, rwc, func() {})
}

// ServeLink is Serve, and calls attached when the link has become that of a stream.
func (s *Server) ServeLink(owner string, rwc io.ReadWriteCloser, attached func()) error {
	l := newLink(rwc)
	h := newHandshake(l)
	c, err := s.accept(h, owner)
	h.timer.Stop()
	if c == nil {
		_ = l.close()
		return err
	}
	attached()
	if err != nil {
		c.mu.Lock()
		c.fail(l, err)
		c.mu.Unlock()
	}
	return c.run(l)
}

// Refuse sends the other end of a link a code in answer to what it says first, and closes the link.
func (s *Server) Refuse(rwc io.ReadWriteCloser, code Code) {
	l := newLink(rwc)
	h := newHandshake(l)
	defer h.timer.Stop()
	if hello, err := h.hello(); err == nil && string(hello[:len(magic)]) == magic {
		if _, err = h.receive(helloSize - len(hello)); err == nil { // or closing could discard the code
			_ = h.refuse(code)
		}
	}
	_ = l.close()
}

// hello returns the magic and the version of what the end that dials says first, after the preface of
// a relay.
func (h *handshake) hello() ([]byte, error) {
	hello, err := h.receive(len(magic) + 1)
	if err != nil || string(hello[:len(prefaceMagic)]) != prefaceMagic {
		return hello, err
	}
	if hello[len(prefaceMagic)] != prefaceVersion {
		return nil, h.refuse(Version)
	}
	seconds, err := h.receive(4)
	if err != nil {
		return nil, err
	}
	h.keep = time.Duration(binary.BigEndian.Uint32(seconds)) * time.Second
	h.said = nil // the other end does not know it
	return h.receive(len(magic) + 1)
}

// accept is the handshake of the end that accepts. Without a Conn the link is not attached.
func (s *Server) accept(h *handshake, owner string) (*Conn, error) {
	hello, err := h.hello()
	if err != nil {
		return nil, err
	}
	if string(hello[:len(magic)]) != magic {
		return nil, errNoStream
	}
	if hello[len(magic)] != version {
		return nil, h.refuse(Version)
	}
	if hello, err = h.receive(helloSize - len(hello)); err != nil {
		return nil, err
	}
	kind, id, nonce := hello[0], [idSize]byte(hello[1:]), hello[1+idSize:]
	switch kind {
	case 0:
		return s.begin(h, owner, nonce)
	case 1:
		return s.resume(h, owner, id)
	}
	return nil, h.refuse(Violated)
}

// refuse sends a code instead of a reply.
func (h *handshake) refuse(code Code) error {
	_ = h.send(append([]byte(magic), version, byte(code)))
	return fmt.Errorf("a link was refused: %w", code)
}

func (s *Server) reply(h *handshake, id [idSize]byte, nonce []byte) error {
	reply := append([]byte(magic), version, 0)
	reply = append(append(reply, id[:]...), nonce...)
	return h.send(binary.BigEndian.AppendUint32(reply, uint32(s.opts.Keep/time.Second)))
}

// begin makes a stream.
func (s *Server) begin(h *handshake, owner string, other []byte) (*Conn, error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	own := key.PublicKey().Bytes()
	c := newConn(s.opts.Keep)
	copy(c.id[:], s.instance[:])
	_, _ = rand.Read(c.id[len(s.instance):])
	if c.secret, err = agree(key, other, other, own); err != nil {
		return nil, h.refuse(Violated)
	}
	c.unused = true
	code := s.add(c, owner)
	for code == Full && s.makeRoom(owner) {
		code = s.add(c, owner)
	}
	if code != 0 {
		return nil, h.refuse(code)
	}
	c.mu.Lock()
	err = c.attach(h.link, 0)
	c.mu.Unlock()
	go func() { // Close waits for it
		defer s.handlers.Done()
		defer c.Close()
		s.opts.Handle(c)
	}()
	if err != nil { // the server was closed
		return nil, err
	}
	return c, s.reply(h, c.id, own)
}

// add registers a stream, and its handler.
func (s *Server) add(c *Conn, owner string) Code {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return Ended
	case s.count[owner] >= s.opts.MaxStreams, len(s.streams) >= s.opts.MaxAll:
		return Full
	}
	c.owner = owner
	s.streams[c.id] = c
	s.count[owner]++
	s.handlers.Add(1)
	c.forget = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.streams, c.id)
		if s.count[owner]--; s.count[owner] == 0 {
			delete(s.count, owner)
		}
	}
	return 0
}

// makeRoom ends a stream of an owner that has no link, and reports whether there was one. It prefers
// those that nobody uses, and then the one that has lost its link first.
func (s *Server) makeRoom(owner string) bool {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.streams))
	s.mu.Unlock()
	var (
		oldest *Conn
		unused bool
		left   time.Time
	)
	for _, c := range all {
		c.mu.Lock()
		if c.owner == owner && c.link == nil && !c.left.IsZero() &&
			(oldest == nil || c.unused && !unused || c.unused == unused && c.left.Before(left)) {
			oldest, unused, left = c, c.unused, c.left
		}
		c.mu.Unlock()
	}
	if oldest == nil {
		return false
	}
	oldest.mu.Lock()
	defer oldest.mu.Unlock()
	if oldest.link == nil {
		oldest.finish(Expired, Expired, true)
	}
	return true
}

// resume attaches the link to a stream, in place of an older one.
func (s *Server) resume(h *handshake, owner string, id [idSize]byte) (*Conn, error) {
	s.mu.Lock()
	c := s.streams[id]
	s.mu.Unlock()
	switch {
	case [8]byte(id[:]) != s.instance:
		return nil, h.refuse(Unknown)
	case c == nil || c.owner != owner: // which looks the same to another owner
		return nil, h.refuse(Expired)
	}
	nonce := make([]byte, nonceSize)
	_, _ = rand.Read(nonce)
	if err := s.reply(h, id, nonce); err != nil {
		return nil, err
	}
	proof, err := h.receiveSigned(c.secret, dialing, proofSize)
	if err != nil {
		_ = h.send([]byte{byte(Refused)})
		return nil, err
	}
	generation, received := binary.BigEndian.Uint64(proof), int64(binary.BigEndian.Uint64(proof[8:]))
	own, code := c.replace(h.link, generation, received)
	if code != 0 {
		_ = h.send([]byte{byte(code)})
		return nil, fmt.Errorf("a link was refused: %w", code)
	}
	return c, h.sendSigned(c.secret, accepting, binary.BigEndian.AppendUint64([]byte{0}, uint64(own)))
}

// replace attaches a link of a higher generation, when nothing comes over older ones any more. It
// returns what this end has received.
func (c *Conn) replace(l *link, generation uint64, received int64) (int64, Code) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ended:
		return 0, Expired
	case generation <= c.generation:
		return 0, Refused
	}
	c.generation, c.unused = generation, false
	old := c.latest
	c.fail(old, errReplaced)
	c.mu.Unlock()
	<-old.gone
	c.mu.Lock()
	if generation != c.generation {
		return 0, Refused // there is a newer one
	}
	if err := c.attach(l, received); err == errInvalid {
		return 0, Violated
	} else if err != nil {
		return 0, Expired
	}
	return c.received(), 0
}

// Count returns how many streams there are.
func (s *Server) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
}

// Shutdown is Close, but first gives the streams that have a link a moment to deliver what was
// written. Their handlers must be about to return.
func (s *Server) Shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, farewell)
	defer cancel()
	for _, c := range s.stop() {
		c.mu.Lock()
		l := c.link
		c.mu.Unlock()
		if l == nil {
			continue
		}
		select {
		case <-c.Done():
		case <-l.gone:
		case <-ctx.Done():
		}
	}
	return s.Close()
}

// stop refuses new streams, and returns the others.
func (s *Server) stop() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	streams := make([]*Conn, 0, len(s.streams))
	for _, c := range s.streams {
		streams = append(streams, c)
	}
	return streams
}

// Close ends all streams, and waits for their handlers.
func (s *Server) Close() error {
	streams := s.stop()
	for _, c := range streams {
		c.mu.Lock()
		c.finish(Ended, Ended, true)
		c.mu.Unlock()
	}
	for _, c := range streams {
		<-c.Done()
	}
	s.handlers.Wait()
	return nil
}
