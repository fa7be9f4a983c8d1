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
)

// Methods about HTTP (PROTOCOL.md, "HTTP").
const (
	methodHTTPRequest     = "http/request"
	notificationBodyDelta = "http/request/bodyDelta"
)

// maxBody is how much of a response waits for a reader that is slower than the
// server; there is no way to make the server wait.
const maxBody = 16 << 20

// Transport returns an http.RoundTripper that sends requests from the machine of
// the Environment, with its network and its name resolution:
//
//	httpClient := &http.Client{Transport: env.Transport()}
//
// Request bodies are sent whole. A response body that is read more slowly than
// it arrives fails when 16 MiB wait.
func (e *Environment) Transport() http.RoundTripper { return roundTripper{e} }

type roundTripper struct{ env *Environment }

// RoundTrip implements http.RoundTripper.
func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.env.Err(); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as a RoundTripper must
		}
		return nil, err
	}
	return t.env.back.roundTrip(r)
}

type wireHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type httpParams struct {
	Method         string       `json:"method"`
	URL            string       `json:"url"`
	Headers        []wireHeader `json:"headers"`
	Body           []byte       `json:"bodyBase64,omitempty"`
	TimeoutMs      *int64       `json:"timeoutMs,omitempty"`
	RedirectPolicy string       `json:"redirectPolicy"`
	RequestID      string       `json:"requestId"`
	StreamResponse bool         `json:"streamResponse"`
}

func (l *link) roundTrip(r *http.Request) (*http.Response, error) {
	params := httpParams{
		Method: r.Method, URL: r.URL.String(), Headers: []wireHeader{},
		RedirectPolicy: "stop", // http.Client follows by itself
		StreamResponse: true,
	}
	if params.Method == "" {
		params.Method = http.MethodGet
	}
	for name, values := range r.Header {
		for _, value := range values {
			params.Headers = append(params.Headers, wireHeader{name, value})
		}
	}
	if r.Host != "" && r.Host != r.URL.Host {
		params.Headers = append(params.Headers, wireHeader{"host", r.Host})
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
		ms := max(1, time.Until(deadline).Milliseconds())
		params.TimeoutMs = &ms
	}
	s := l.streams.open()
	params.RequestID = s.id
	raw, err := l.request(ctx, methodHTTPRequest, params)
	if err != nil {
		s.stop(err)
		return nil, err
	}
	var result struct {
		Status  int          `json:"status"`
		Headers []wireHeader `json:"headers"`
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		s.stop(err)
		return nil, fmt.Errorf("the answer to http/request cannot be understood: %w", err)
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
	if n, err := strconv.ParseInt(response.Header.Get("Content-Length"), 10, 64); err == nil {
		response.ContentLength = n
	}
	s.ends(ctx)
	return response, nil
}

// streams are the bodies of responses that are coming.
type streams struct {
	mu   sync.Mutex
	last uint64
	byID map[string]*bodyStream
}

func (s *streams) open() *bodyStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	b := &bodyStream{all: s, id: "http-" + strconv.FormatUint(s.last, 10)}
	b.ready.L = &b.mu
	if s.byID == nil {
		s.byID = make(map[string]*bodyStream)
	}
	s.byID[b.id] = b
	return b
}

// delta takes http/request/bodyDelta. Streams that nobody reads any more are no
// error.
func (s *streams) delta(raw json.RawMessage) error {
	var p struct {
		RequestID string  `json:"requestId"`
		Seq       uint64  `json:"seq"`
		Delta     []byte  `json:"deltaBase64"`
		Done      bool    `json:"done"`
		Error     *string `json:"error"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return err
	}
	s.mu.Lock()
	b := s.byID[p.RequestID]
	s.mu.Unlock()
	if b == nil {
		return nil
	}
	err := b.push(p.Seq, p.Delta)
	switch {
	case err != nil:
	case p.Error != nil:
		err = errors.New(*p.Error)
	case p.Done:
		err = io.EOF
	}
	if err != nil {
		b.stop(err)
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
	all *streams
	id  string

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
	b.frames = append(b.frames, data)
	b.ready.Signal()
	return nil
}

// ends makes the body end with the context of its request.
func (b *bodyStream) ends(ctx context.Context) {
	detach := context.AfterFunc(ctx, func() { b.stop(context.Cause(ctx)) })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.detach = detach
	if b.end != nil {
		detach()
	}
}

// stop ends the body; what has come is still read.
func (b *bodyStream) stop(err error) {
	b.all.mu.Lock()
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
	b.stop(http.ErrBodyReadAfterClose)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frames = nil
	b.end = http.ErrBodyReadAfterClose
	return nil
}
