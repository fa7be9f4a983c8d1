package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"execserver/protocol"
)

// maxBody bounds the bytes of a response that wait for a reader slower than the server.
// There is no way to make the server wait.
const maxBody = 16 << 20

// smallFrame is the size up to which waiting frames are joined, because each takes memory
// apart from its bytes.
const smallFrame = 4 << 10

type roundTripper struct{ env *Environment }

// RoundTrip implements http.RoundTripper.
func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.env.Err(); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as a RoundTripper must
		}
		return nil, err
	}
	return t.roundTrip(r)
}

func (t roundTripper) roundTrip(r *http.Request) (*http.Response, error) {
	params := protocol.HTTPRequest{
		Method: r.Method, URL: r.URL.String(),
		RedirectPolicy: protocol.RedirectStop, // http.Client follows redirects itself
		StreamResponse: true,
	}
	if params.Method == "" {
		params.Method = http.MethodGet
	}
	for name, values := range r.Header {
		for _, value := range values {
			params.Headers = append(params.Headers, protocol.HTTPHeader{Name: name, Value: value})
		}
	}
	if r.Host != "" && r.Host != r.URL.Host {
		params.Headers = append(params.Headers, protocol.HTTPHeader{Name: "host", Value: r.Host})
	}
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err := errors.Join(err, r.Body.Close()); err != nil {
			return nil, fmt.Errorf("read the request's body: %w", err)
		}
		params.Body = body
	}
	ctx := r.Context()
	if deadline, ok := ctx.Deadline(); ok {
		params.TimeoutMs = new(uint64(max(1, time.Until(deadline).Milliseconds())))
	}
	s := t.env.bodies.open(t.cancelHTTP)
	params.RequestID = s.id
	raw, err := t.env.conns.request(ctx, protocol.MethodHTTPRequest, params)
	if err != nil {
		s.abandon(err)
		return nil, err
	}
	var result protocol.HTTPResponse
	if err := understand(protocol.MethodHTTPRequest, raw, &result); err != nil {
		s.abandon(err)
		return nil, err
	}
	if result.Status < 100 || result.Status > 999 {
		err := &answerError{protocol.MethodHTTPRequest, fmt.Errorf("there is no status %d", result.Status)}
		s.abandon(err)
		return nil, err
	}
	response := &http.Response{
		StatusCode: result.Status,
		Status:     strconv.Itoa(result.Status) + " " + http.StatusText(result.Status),
		Proto:      "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: make(http.Header), ContentLength: -1, Body: s, Request: r,
	}
	for _, h := range result.Headers {
		response.Header.Add(h.Name, h.Value)
	}
	if n, err := strconv.ParseInt(response.Header.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		response.ContentLength = n
	}
	s.ends(ctx)
	return response, nil
}

// cancelHTTP has the server end a request, if it can. An older one goes on until the body
// ends.
func (t roundTripper) cancelHTTP(id string) {
	if t.env.has(capHTTPCancel) {
		t.env.conns.notify(protocol.MethodHTTPCancel, protocol.HTTPCancelParams{RequestID: id})
	}
}

// streams are the bodies of incoming responses.
type streams struct {
	mu   sync.Mutex
	last uint64
	byID map[string]*bodyStream
}

// open adds a body. cancel has the server end the request.
func (s *streams) open(cancel func(id string)) *bodyStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	b := &bodyStream{all: s, cancel: cancel, id: "http-" + strconv.FormatUint(s.last, 10)}
	b.ready.L = &b.mu
	if s.byID == nil {
		s.byID = make(map[string]*bodyStream)
	}
	s.byID[b.id] = b
	return b
}

// delta handles http/request/bodyDelta. It ignores streams without a reader.
func (s *streams) delta(raw json.RawMessage) error {
	var p protocol.HTTPBodyDelta
	if err := json.Unmarshal(raw, &p); err != nil {
		return err
	}
	s.mu.Lock()
	b := s.byID[p.RequestID]
	s.mu.Unlock()
	if b == nil {
		return nil
	}
	if err := b.push(p.Seq, p.Data); err != nil {
		b.abandon(err)
		return nil
	}
	switch {
	case p.Error != nil:
		b.stop(errors.New(*p.Error))
	case p.Done:
		b.stop(io.EOF)
	}
	return nil
}

func (s *streams) fail(err error) {
	s.mu.Lock()
	var all []*bodyStream
	for _, b := range s.byID {
		all = append(all, b)
	}
	s.mu.Unlock()
	for _, b := range all {
		b.stop(err)
	}
}

// bodyStream is the body of one response.
type bodyStream struct {
	all    *streams
	id     string
	cancel func(id string)

	mu     sync.Mutex
	ready  sync.Cond
	seq    uint64
	frames [][]byte
	bytes  int
	end    error
	detach func() bool // from the request's context
}

func (b *bodyStream) push(seq uint64, data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if seq != b.seq+1 {
		return fmt.Errorf("received seq %d, expected %d", seq, b.seq+1)
	}
	b.seq = seq
	if b.end != nil || len(data) == 0 {
		return nil
	}
	if b.bytes += len(data); b.bytes > maxBody {
		return fmt.Errorf("the body is not read fast enough: %d bytes wait, the limit is %d", b.bytes, maxBody)
	}
	if last := len(b.frames) - 1; last >= 0 && len(b.frames[last])+len(data) <= smallFrame {
		b.frames[last] = append(b.frames[last], data...)
	} else {
		b.frames = append(b.frames, data)
	}
	b.ready.Signal()
	return nil
}

// ends makes the body end with the context of its request.
func (b *bodyStream) ends(ctx context.Context) {
	detach := context.AfterFunc(ctx, func() { b.abandon(context.Cause(ctx)) })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.detach = detach
	if b.end != nil {
		detach()
	}
}

// abandon ends the body, and has the server end it if it has not.
func (b *bodyStream) abandon(err error) {
	if b.stop(err) {
		b.cancel(b.id)
	}
}

// stop ends the body, and reports whether it had not ended. The reader still receives the
// bytes that have arrived.
func (b *bodyStream) stop(err error) (open bool) {
	b.all.mu.Lock()
	open = b.all.byID[b.id] == b
	delete(b.all.byID, b.id)
	b.all.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.end == nil {
		b.end = err
	}
	if b.detach != nil {
		b.detach()
	}
	b.ready.Broadcast()
	return open
}

// Read implements io.Reader.
func (b *bodyStream) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.frames) == 0 && b.end == nil {
		b.ready.Wait()
	}
	if len(b.frames) == 0 {
		return 0, b.end
	}
	n := copy(p, b.frames[0])
	b.bytes -= n
	if b.frames[0] = b.frames[0][n:]; len(b.frames[0]) == 0 {
		b.frames = b.frames[1:]
	}
	return n, nil
}

// Close implements io.Closer.
func (b *bodyStream) Close() error {
	b.abandon(http.ErrBodyReadAfterClose)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frames = nil
	b.end = http.ErrBodyReadAfterClose
	return nil
}
