package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	maxHeldBodies     = 4         // of responses, beside the largest message
	maxBufferedBytes  = 4 << 20   // of streamed bodies, while the writer is busy
	maxBodyDeltaBytes = 256 << 10 // of one notification
	bodyReadBytes     = 32 << 10
)

// httpRequests are the HTTP requests of one connection, which end with it.
type httpRequests struct {
	maxBody int64
	maxHeld int64
	wake    func() // wakes the writer; see AppendEvent
	check   httprequest.Check

	makeClient sync.Once
	client     *httprequest.Client
	clientErr  error

	mu       sync.Mutex
	active   int   // requests whose response has not been sent
	held     int64 // bytes of bodies
	streams  map[string]*bodyStream
	ready    []*bodyStream // streams with something to send, in turns
	buffered int           // bytes of streamed bodies that have not been sent
	room     sync.Cond     // broadcast when buffered shrinks, on mu
}

func newHTTPRequests(o *Options, wake func(), check httprequest.Check) *httpRequests {
	const most = 1 << 40 // so that sums do not overflow
	maxBody := min(o.MaxHTTPBodyBytes, most)
	h := &httpRequests{
		maxBody: maxBody,
		maxHeld: min(o.MaxMessageBytes, most) + maxHeldBodies*maxBody,
		wake:    wake,
		check:   check,
		streams: make(map[string]*bodyStream),
	}
	h.room.L = &h.mu
	return h
}

// close closes idle network connections. The requests have ended.
func (h *httpRequests) close() {
	if h.client != nil {
		h.client.Close()
	}
}

// exchange is one admitted HTTP request.
type exchange struct {
	owner  *httpRequests
	cancel context.CancelCauseFunc
	held   int64
	stream *bodyStream // nil if the answer has the body
	over   bool
}

// begin admits a request, which cancel ends. The caller must end it, or pass its stream on.
func (h *httpRequests) begin(p protocol.HTTPRequest, cancel context.CancelCauseFunc) (*exchange, error) {
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

// end releases what the request holds. It may be called twice.
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

// errCancelled is why a request ends that the client has cancelled.
var errCancelled = errors.New("the client has cancelled it")

// cancel ends the request that streams its response as id, if there is one. The id is free,
// and nothing more of the body is sent. What serves the request releases the rest.
func (h *httpRequests) cancel(id string) {
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
	h.room.Broadcast()
	if s.ended {
		s.exchange.endLocked()
	}
	h.mu.Unlock()
	s.exchange.cancel(errCancelled)
}

// cancelHTTP serves the notification http/request/cancel.
func (c *connection) cancelHTTP(params json.RawMessage) error {
	if c.phase == phaseNew {
		return fmt.Errorf("`%s` was sent before `initialize`", protocol.MethodHTTPCancel)
	}
	p, err := protocol.DecodeParams[protocol.HTTPCancelParams](params)
	if err != nil {
		return fmt.Errorf("`%s`: %w", protocol.MethodHTTPCancel, err)
	}
	c.http.cancel(p.RequestID)
	return nil
}

// httpRequest serves http/request (PROTOCOL.md, "HTTP requests").
func (c *connection) httpRequest(r *rpc.Request, p protocol.HTTPRequest) {
	ctx, cancel := context.WithCancelCause(r.Context())
	e, err := c.http.begin(p, cancel)
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
		if err := c.auditRequest(p.Method, p.URL); err != nil {
			e.end()
			failHTTP(r, err)
			return
		}
		response, err := c.http.do(ctx, p, c.auditRequest)
		if err != nil {
			e.end() // before the client receives the answer and may try again
			if denied, ok := errors.AsType[*deniedError](err); ok {
				c.refused(r, protocol.Errorf(protocol.CodeInvalidRequest, "%s", denied))
				return
			}
			failHTTP(r, err)
			return
		}
		defer response.Body.Close()
		answer, err := c.http.answer(e, response)
		if err == nil {
			err = r.Reserve(answer.EncodedLen())
		}
		if err == nil && ctx.Err() != nil { // the client cancelled while the answer waited for room
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
func (h *httpRequests) do(ctx context.Context, p protocol.HTTPRequest, redirected func(method, url string) error) (*httprequest.Response, error) {
	h.makeClient.Do(func() { h.client, h.clientErr = httprequest.NewClient(h.check) })
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
func (h *httpRequests) answer(e *exchange, response *httprequest.Response) (*protocol.HTTPResponse, error) {
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

// failHTTP answers a request that got no response, unless its connection is gone.
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
