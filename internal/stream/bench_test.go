package stream_test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"execserver/internal/stream"
	"execserver/internal/testkit"
)

// socketPair returns two connected unix sockets.
func socketPair(b *testing.B) (near, far io.ReadWriteCloser) {
	listener, err := net.Listen("unix", filepath.Join(testkit.SocketDir(b), "s"))
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	near, err = net.Dial("unix", listener.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	far, err = listener.Accept()
	if err != nil {
		b.Fatal(err)
	}
	return near, far
}

// pipes is a link like the standard streams of ssh.
type pipes struct{ r, w *os.File }

func (p pipes) Read(b []byte) (int, error)  { return p.r.Read(b) }
func (p pipes) Write(b []byte) (int, error) { return p.w.Write(b) }
func (p pipes) Close() error {
	_ = p.r.Close()
	return p.w.Close()
}

func pipePair(b *testing.B) (near, far io.ReadWriteCloser) {
	r1, w1, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	r2, w2, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	return pipes{r1, w2}, pipes{r2, w1}
}

// layer returns the ends of a stream over a link.
func layer(b *testing.B, near, far io.ReadWriteCloser) (dialed, accepted io.ReadWriteCloser) {
	streams, over := make(chan *stream.Conn, 1), make(chan struct{})
	server := stream.NewServer(stream.ServerOptions{Handle: func(c *stream.Conn) {
		streams <- c
		<-over
	}})
	served := make(chan error, 1)
	go func() { served <- server.Serve("owner", far) }()
	conn, err := stream.Dial(b.Context(), stream.Options{Link: noContext(func() (io.ReadWriteCloser, error) { return near, nil })})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = conn.Close()
		close(over)
		_ = server.Close()
		<-served
	})
	return conn, <-streams
}

// withAndWithout runs a benchmark over links, and over streams over them.
func withAndWithout(b *testing.B, run func(b *testing.B, near, far io.ReadWriteCloser)) {
	for _, kind := range []struct {
		name string
		pair func(b *testing.B) (near, far io.ReadWriteCloser)
	}{{"socket", socketPair}, {"pipe", pipePair}} {
		b.Run(kind.name+"/link", func(b *testing.B) {
			near, far := kind.pair(b)
			run(b, near, far)
			_, _ = near.Close(), far.Close()
		})
		b.Run(kind.name+"/stream", func(b *testing.B) {
			near, far := kind.pair(b)
			near, far = layer(b, near, far)
			run(b, near, far)
		})
	}
}

// BenchmarkThroughput writes 64 KiB at a time.
func BenchmarkThroughput(b *testing.B) {
	withAndWithout(b, func(b *testing.B, near, far io.ReadWriteCloser) {
		piece := make([]byte, 64<<10)
		b.SetBytes(int64(len(piece)))
		b.ReportAllocs()
		all := int64(b.N) * int64(len(piece))
		read := make(chan error, 1)
		go func() {
			_, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(far, all), make([]byte, 64<<10))
			read <- err
		}()
		b.ResetTimer()
		for range b.N {
			if _, err := near.Write(piece); err != nil {
				b.Fatal(err)
			}
		}
		if err := <-read; err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkPingPong sends a byte there and back.
func BenchmarkPingPong(b *testing.B) {
	withAndWithout(b, func(b *testing.B, near, far io.ReadWriteCloser) {
		b.ReportAllocs()
		go func() {
			var buf [1]byte
			for range b.N {
				if _, err := io.ReadFull(far, buf[:]); err != nil {
					return
				}
				if _, err := far.Write(buf[:]); err != nil {
					return
				}
			}
		}()
		var buf [1]byte
		b.ResetTimer()
		for range b.N {
			if _, err := near.Write(buf[:]); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(near, buf[:]); err != nil {
				b.Fatal(err)
			}
		}
	})
}
