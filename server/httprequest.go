package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"execserver/internal/httprequest"
	"execserver/internal/rpc"
	"execserver/protocol"
)

// DefaultMaxHTTPBodyBytes is the default bound of the body of an HTTP response that is
// not streamed.
const DefaultMaxHTTPBodyBytes = 32 << 20

// Bounds of the HTTP requests of one connection. Held bodies are those of requests, and
// those of responses that are not streamed.
const (
	maxHTTPRequests   = 256
	maxHeldBodies     = 4         // of responses, in addition to the largest message
	maxBufferedBytes  = 4 << 20   // of streamed bodies, while the writer is busy
	maxBodyDeltaBytes = 256 << 10 // of one notification
	bodyReadBytes     = 32 << 10
)

// httpHandler serves the HTTP requests of one connection, which end with it.
type httpHandler struct {
	*caller
	maxBody int64
	maxHeld int64
	wake    func() // wakes the writer; see AppendEvent

	makeClient sync.Once
	client     *httprequest.Client
	clientErr  error

	mu       sync.Mutex
	active   int   // requests whose response has not been sent
	held     int64 // bytes of bodies
	streams  map[string]*bodyStream
	ready    []*bodyStream // streams with something to send, in turns
	buffered int           // bytes of streamed bodies that have not been sent
	shrunk   sync.Cond     // broadcast when buffered shrinks, on mu
}

func newHTTPHandler(of *caller, conn *rpc.Conn) *httpHandler {
	const most = 1 << 40 // so that sums do not overflow
	o := &of.server.opts
	maxBody := min(o.MaxHTTPBodyBytes, most)
	h := &httpHandler{
		caller:  of,
		maxBody: maxBody,
		maxHeld: min(o.MaxMessageBytes, most) + maxHeldBodies*maxBody,
		wake:    conn.Wake,
		streams: make(map[string]*bodyStream),
	}
	h.shrunk.L = &h.mu
	return h
}

// close closes idle network connections. The requests have ended.
func (h *httpHandler) close() {
	if h.client != nil {
		h.client.Close()
	}
}

// exchange is one admitted HTTP request.
type exchange struct {
	owner  *httpHandler
	cancel context.CancelCauseFunc
	held   int64
	stream *bodyStream // nil if the answer has the body
	over   bool
}

// begin admits a request that cancel ends. The caller must call end or pass the stream on.
func (h *httpHandler) begin(p protocol.HTTPRequest, cancel context.CancelCauseFunc) (*exchange, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.StreamResponse && h.streams[p.RequestID] != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidParams,
			"http/request refused: a request streams its response as %q already; choose another requestId", p.RequestID)
	}
	if h.active >= maxHTTPRequests {
		return nil, protocol.Errorf(protocol.CodeInvalidRequest,
			"http/request refused: %d HTTP requests of this connection are active, the limit; wait until one has ended", h.active)
	}
	e := &exchange{owner: h, cancel: cancel}
	if err := e.holdLocked(int64(len(p.Body))); err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalidRequest, "http/request refused: %s", err)
	}
	h.active++
	if p.StreamResponse {
		e.stream = &bodyStream{exchange: e, id: p.RequestID}
		h.streams[p.RequestID] = e.stream
	}
	return e, nil
}

// hold reserves n more bytes for bodies.
func (e *exchange) hold(n int64) error {
	e.owner.mu.Lock()
	defer e.owner.mu.Unlock()
	return e.holdLocked(n)
}

func (e *exchange) holdLocked(n int64) error {
	h := e.owner
	if h.held+n > h.maxHeld {
		return fmt.Errorf("the bodies of this connection's HTTP requests would take %d bytes, the limit is %d; "+
			"wait until one has ended, or ask for streamResponse", h.held+n, h.maxHeld)
	}
	h.held += n
	e.held += n
	return nil
}

// end releases the memory and the id of the request. It may be called twice.
func (e *exchange) end() {
	e.owner.mu.Lock()
	defer e.owner.mu.Unlock()
	e.endLocked()
}

func (e *exchange) endLocked() {
	if e.over {
		return
	}
	e.over = true
	h := e.owner
	h.active--
	h.held -= e.held
	if e.stream != nil && h.streams[e.stream.id] == e.stream {
		delete(h.streams, e.stream.id)
	}
}

// errCancelled is the cause when the client has cancelled a request.
var errCancelled = errors.New("the client has cancelled it")

// cancel ends the request that streams its response as id, if there is one. It frees the id,
// and nothing more of the body is sent. The goroutine of the request releases the rest.
func (h *httpHandler) cancel(id string) {
	h.mu.Lock()
	s := h.streams[id]
	if s == nil {
		h.mu.Unlock()
		return
	}
	delete(h.streams, id)
	s.cancelled = true
	h.ready = slices.DeleteFunc(h.ready, func(other *bodyStream) bool { return other == s })
	h.buffered -= len(s.data)
	s.data = nil
	h.shrunk.Broadcast()
	if s.ended {
		s.exchange.endLocked()
	}
	h.mu.Unlock()
	s.exchange.cancel(errCancelled)
}

// cancelRequest serves the notification http/request/cancel.
func (h *httpHandler) cancelRequest(params json.RawMessage) error {
	p, err := protocol.DecodeParams[protocol.HTTPCancelParams](params)
	if err != nil {
		return fmt.Errorf("`%s`: %w", protocol.MethodHTTPCancel, err)
	}
	h.cancel(p.RequestID)
	return nil
}

// request serves http/request (PROTOCOL.md, "HTTP requests").
func (h *httpHandler) request(r *rpc.Request, p protocol.HTTPRequest) {
	ctx, cancel := context.WithCancelCause(r.Context())
	e, err := h.begin(p, cancel)
	if err != nil {
		cancel(nil)
		r.Fail(err)
		return
	}
	r.Go(func() {
		defer cancel(nil)
		streaming := false
		defer func() {
			if !streaming {
				e.end()
			}
		}()
		if p.TimeoutMs != nil {
			cause := fmt.Errorf("timeout after %d ms", *p.TimeoutMs)
			timed, cancel := context.WithTimeoutCause(ctx, milliseconds(p.TimeoutMs), cause)
			defer cancel()
			ctx = timed
		}
		if err := h.auditRequest(p.Method, p.URL); err != nil {
			e.end()
			failHTTP(r, err)
			return
		}
		response, err := h.do(ctx, p, h.auditRequest)
		if err != nil {
			e.end() // before the client receives the answer and may try again
			if errors.As(err, new(*deniedError)) {
				h.fail(r, err)
				return
			}
			failHTTP(r, err)
			return
		}
		defer response.Body.Close()
		answer, err := h.answer(e, response)
		if err == nil {
			err = r.Reserve(answer.EncodedLen())
		}
		if err == nil && ctx.Err() != nil { // the client cancelled while the answer waited for its reservation
			err = context.Cause(ctx)
		}
		if streaming = err == nil && e.stream != nil; !streaming {
			e.end()
		}
		if err != nil {
			failHTTP(r, err)
			return
		}
		r.Reply(answer)
		if streaming {
			e.stream.pass(ctx, response.Body)
		}
	})
}

// do sends the request. It calls redirected before it follows a redirect.
func (h *httpHandler) do(ctx context.Context, p protocol.HTTPRequest, redirected func(method, url string) error) (*httprequest.Response, error) {
	h.makeClient.Do(func() { h.client, h.clientErr = httprequest.NewClient(h.permitAddress, h.reserveConn) })
	if h.clientErr != nil {
		return nil, h.clientErr
	}
	request := &httprequest.Request{
		Method: p.Method, URL: p.URL, Body: p.Body,
		FollowRedirects: p.RedirectPolicy == protocol.RedirectFollow, Redirected: redirected,
	}
	for _, header := range p.Headers {
		request.Headers = append(request.Headers, httprequest.Header(header))
	}
	return h.client.Do(ctx, request)
}

// answer builds the answer from a response. It reads the body unless that is streamed.
func (h *httpHandler) answer(e *exchange, response *httprequest.Response) (*protocol.HTTPResponse, error) {
	answer := &protocol.HTTPResponse{Status: response.Status}
	for _, header := range response.Headers {
		answer.Headers = append(answer.Headers, protocol.HTTPHeader(header))
	}
	if e.stream != nil {
		return answer, nil
	}
	var err error
	answer.Body, err = response.ReadBody(h.maxBody, e.hold)
	if err != nil {
		if _, ok := errors.AsType[*httprequest.TooLargeError](err); ok {
			err = fmt.Errorf("%w; ask for streamResponse", err)
		}
		return nil, protocol.Errorf(protocol.CodeInternal, "http/request failed: %s", err)
	}
	return answer, nil
}

// failHTTP answers a request that failed, unless its connection has ended.
func failHTTP(r *rpc.Request, err error) {
	if r.Context().Err() != nil {
		r.Drop()
		return
	}
	if _, ok := errors.AsType[*protocol.Error](err); ok {
		r.Fail(err)
		return
	}
	if _, ok := errors.AsType[*httprequest.InvalidError](err); ok {
		r.Fail(protocol.Errorf(protocol.CodeInvalidParams, "http/request %s", err))
		return
	}
	r.Fail(protocol.Errorf(protocol.CodeInternal, "http/request failed: %s", err))
}

// reserveConn counts one more network connection for HTTP requests.
func (h *httpHandler) reserveConn() (leave func(), err error) {
	requests, of := h.server.quotas.requests, h.principal.QuotaKey()
	if refusal := requests.Take(of); refusal != nil {
		return nil, errors.New(refusal.Of("has", "network connections for HTTP requests"))
	}
	return func() { requests.Release(of) }, nil
}

// bodyStream passes the body of one response to the client. While the connection's writer is
// busy, it buffers data from the network. When its buffer is full, it stops reading.
type bodyStream struct {
	exchange *exchange
	id       string

	// guarded by httpHandler.mu
	data      []byte // read from the network, not sent yet
	seq       uint64 // of the last notification sent
	queued    bool   // it is in httpHandler.ready
	ended     bool
	cancelled bool    // by the client
	failure   *string // why the body is incomplete, or nil
}

// pass reads the body until its end, or until ctx is done.
func (s *bodyStream) pass(ctx context.Context, body io.Reader) {
	h := s.exchange.owner
	stop := context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.shrunk.Broadcast()
	})
	defer stop()
	err := errors.New("internal error") // reported if something panics
	defer func() { s.finish(err) }()
	piece := make([]byte, bodyReadBytes)
	for {
		if !s.awaitSpace(ctx) {
			err = &httprequest.BodyError{Err: context.Cause(ctx)}
			return
		}
		var n int
		n, err = body.Read(piece)
		s.add(piece[:n])
		if err != nil {
			return
		}
	}
}

// awaitSpace waits until the stream may read more. It returns false when ctx has ended.
// Every stream may always buffer one piece.
func (s *bodyStream) awaitSpace(ctx context.Context) bool {
	h := s.exchange.owner
	h.mu.Lock()
	defer h.mu.Unlock()
	for ctx.Err() == nil && len(s.data) > 0 &&
		(len(s.data)+bodyReadBytes > maxBodyDeltaBytes || h.buffered >= maxBufferedBytes) {
		h.shrunk.Wait()
	}
	return ctx.Err() == nil
}

// add adds a piece.
func (s *bodyStream) add(piece []byte) {
	h := s.exchange.owner
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(piece) == 0 || s.cancelled {
		return
	}
	s.data = append(s.data, piece...)
	h.buffered += len(piece)
	s.queueLocked()
}

// finish records how the body ended.
func (s *bodyStream) finish(err error) {
	h := s.exchange.owner
	h.mu.Lock()
	defer h.mu.Unlock()
	s.ended = true
	if s.cancelled {
		s.exchange.endLocked()
		return
	}
	if err != io.EOF {
		text := err.Error()
		s.failure = &text
	}
	s.queueLocked()
}

func (s *bodyStream) queueLocked() {
	h := s.exchange.owner
	if !s.queued {
		s.queued = true
		h.ready = append(h.ready, s)
		h.wake()
	}
}

// AppendEvent implements rpc.Source: it appends the next notification
// http/request/bodyDelta. ok is false if there is none.
func (h *httpHandler) AppendEvent(frame []byte) (_ []byte, ok bool) {
	h.mu.Lock()
	if len(h.ready) == 0 {
		h.mu.Unlock()
		return frame, false
	}
	s := h.ready[0]
	h.ready[0] = nil
	h.ready = h.ready[1:]
	s.seq++
	delta := protocol.HTTPBodyDelta{RequestID: s.id, Seq: s.seq, Data: s.data}
	s.data, s.queued = nil, false
	switch {
	case len(delta.Data) == 0:
		delta.Done, delta.Error = true, s.failure
		s.exchange.endLocked()
	case s.ended:
		s.queueLocked()
	}
	h.buffered -= len(delta.Data)
	h.shrunk.Broadcast()
	h.mu.Unlock()
	return protocol.AppendHTTPBodyDelta(frame, delta), true
}
