package transcript

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/coder/websocket"
)

// DialWebSocket connects to a ws:// or wss:// URL with headers of the caller's. The error is a
// *RefusedError when the server answers with another status than 101.
func DialWebSocket(ctx context.Context, url string, config *tls.Config, header http.Header) (Conn, error) {
	return DialWebSocketBy(ctx, new(net.Dialer), url, config, header)
}

// Dialer makes a connection to an address, or to another one that stands for it.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// DialWebSocketBy is DialWebSocket with a dialer of the caller's.
func DialWebSocketBy(ctx context.Context, dialer Dialer, url string, config *tls.Config, header http.Header) (Conn, error) {
	peer := &webSocket{ended: make(chan error, 1)}
	roundTripper := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   config,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			peer.valve = &valve{Conn: conn}
			return peer.valve, err
		},
	}
	options := &websocket.DialOptions{HTTPClient: &http.Client{Transport: roundTripper}, HTTPHeader: header}
	conn, response, err := websocket.Dial(ctx, url, options)
	if err != nil && response != nil {
		text, _ := io.ReadAll(response.Body)
		return nil, &RefusedError{Status: response.StatusCode, Text: string(text)}
	}
	if err != nil {
		return nil, err
	}
	conn.SetReadLimit(-1)
	peer.conn = conn
	return peer, nil
}

// webSocket is a client that uses an independent implementation.
type webSocket struct {
	conn  *websocket.Conn
	valve *valve

	// ended receives the server's answer to End, which the library hides from Receive.
	ending atomic.Bool
	ended  chan error
}

func (p *webSocket) Send(frame Frame, message []byte) error {
	ctx := context.Background()
	switch frame {
	case Binary:
		return p.conn.Write(ctx, websocket.MessageBinary, message)
	case Fragmented:
		w, err := p.conn.Writer(ctx, websocket.MessageText)
		for len(message) > 0 && err == nil {
			n := min(7, len(message))
			_, err = w.Write(message[:n])
			message = message[n:]
		}
		if err != nil {
			return err
		}
		return w.Close()
	case Partial:
		return errors.ErrUnsupported
	}
	return p.conn.Write(ctx, websocket.MessageText, message)
}

func (p *webSocket) Receive() ([]byte, error) {
	kind, message, err := p.conn.Read(context.Background())
	if err != nil && p.ending.Load() {
		err = <-p.ended
	}
	var closing websocket.CloseError
	switch {
	case err == nil && (kind == websocket.MessageBinary) != (len(message) > 0 && message[0] <= 1):
		return nil, errors.New("the server sent JSON as a binary message, or the other way around")
	case err == nil:
		return message, nil
	case errors.As(err, &closing):
		return nil, &EndedError{Code: int(closing.Code), Reason: closing.Reason}
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return nil, &EndedError{Code: int(websocket.StatusAbnormalClosure)}
	}
	return nil, err
}

func (p *webSocket) End(code int, reason string) error {
	p.ending.Store(true)
	go func() {
		err := p.conn.Close(websocket.StatusCode(code), reason)
		if err == nil { // then the server's code was the same
			err = websocket.CloseError{Code: websocket.StatusCode(code)}
		}
		p.ended <- err
	}()
	return nil
}

func (p *webSocket) Drop() {
	p.valve.drop()
	_ = p.conn.CloseNow()
}

// Mute implements Muter.
func (p *webSocket) Mute(mute bool) { p.valve.shut(mute) }

// valve is a connection whose reads can be blocked.
type valve struct {
	net.Conn
	mu      sync.Mutex
	closed  chan struct{} // nil: open
	dropped bool
}

func (v *valve) shut(shut bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case shut && v.closed == nil:
		v.closed = make(chan struct{})
	case !shut && v.closed != nil:
		close(v.closed)
		v.closed = nil
	}
}

// drop closes the connection, and discards the bytes that arrived while it was shut.
func (v *valve) drop() {
	v.mu.Lock()
	v.dropped = true
	v.mu.Unlock()
	_ = v.Conn.Close()
	v.shut(false)
}

func (v *valve) Read(b []byte) (int, error) {
	n, err := v.Conn.Read(b)
	v.mu.Lock()
	closed := v.closed
	v.mu.Unlock()
	if closed != nil {
		<-closed
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.dropped {
		return 0, net.ErrClosed
	}
	return n, err
}
