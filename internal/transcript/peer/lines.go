// Package peer is the client's end of the connections that transcripts are run
// over: lines, and WebSocket in an implementation that is not ours.
package peer

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"

	"execserver/internal/transcript"
)

// lines is a client with one message to a line.
type lines struct {
	r       *bufio.Reader
	w       io.Writer
	end     func() error // of what we send
	closing func() error
}

// NewLines makes a client of two streams. end ends the one that it sends, closing
// both; each is called once at most.
func NewLines(r io.Reader, w io.Writer, end, closing func() error) transcript.Conn {
	return &lines{bufio.NewReader(r), w, sync.OnceValue(end), sync.OnceValue(closing)}
}

// DialUnix connects to a unix socket.
func DialUnix(path string) (transcript.Conn, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	return NewLines(conn, conn, conn.(*net.UnixConn).CloseWrite, conn.Close), nil
}

func (p *lines) Send(frame transcript.Frame, message []byte) error {
	if frame == transcript.Binary || frame == transcript.Fragmented {
		return errors.ErrUnsupported
	}
	if frame == transcript.Whole {
		message = append(message, '\n')
	}
	_, err := p.w.Write(message)
	return err
}

func (p *lines) Receive() ([]byte, error) {
	line, err := p.r.ReadBytes('\n')
	switch {
	case err == nil:
		return line, nil
	case len(line) > 0:
		return nil, errors.New("the server's last line has no end")
	case errors.Is(err, io.EOF):
		return nil, &transcript.EndedError{}
	}
	return nil, err
}

func (p *lines) End(int, string) error { return p.end() }
func (p *lines) Drop()                 { _ = p.closing() }
