package transcript

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// lines is a client that sends one message a line, and binary messages in frames.
type lines struct {
	r       *bufio.Reader
	w       io.Writer
	end     func() error // of what we send
	closing func() error
}

// NewLines returns a client that reads r and writes w. End calls end, which must close w;
// Drop calls closing, which must close both. Each is called once at most.
func NewLines(r io.Reader, w io.Writer, end, closing func() error) Conn {
	return &lines{bufio.NewReader(r), w, sync.OnceValue(end), sync.OnceValue(closing)}
}

// DialUnix connects to a unix socket.
func DialUnix(path string) (Conn, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	return NewLines(conn, conn, conn.(*net.UnixConn).CloseWrite, conn.Close), nil
}

func (p *lines) Send(frame Frame, message []byte) error {
	switch frame {
	case Fragmented:
		return errors.ErrUnsupported
	case Whole:
		message = append(message, '\n')
	case Binary:
		header := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
		message = append(header, message...)
	}
	_, err := p.w.Write(message)
	return err
}

func (p *lines) Receive() ([]byte, error) {
	if first, err := p.r.Peek(1); err == nil && first[0] == 0 {
		var header [5]byte
		if _, err := io.ReadFull(p.r, header[:]); err != nil {
			return nil, err
		}
		message := make([]byte, binary.BigEndian.Uint32(header[1:]))
		_, err := io.ReadFull(p.r, message)
		return message, err
	}
	line, err := p.r.ReadBytes('\n')
	switch {
	case err == nil:
		return line, nil
	case len(line) > 0:
		return nil, errors.New("the server's last line has no end")
	case errors.Is(err, io.EOF):
		return nil, &EndedError{}
	}
	return nil, err
}

func (p *lines) End(int, string) error { return p.end() }
func (p *lines) Drop()                 { _ = p.closing() }
