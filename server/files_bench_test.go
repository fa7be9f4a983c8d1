//go:build unix

package server_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sort"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"execserver/internal/filesystem"
	"execserver/server"
)

// The benchmarks of files measure each method through a server on loopback, as
// "websocket", beside the same work in this process without a server, as
// "floor". The two are to be compared within one run. What the client does with
// an answer other than taking it from the socket does not count.

// benchClient is a client on a WebSocket that costs as little as possible: it
// sends a message with one system call, and does not mask it, which is to say
// with zeros.
type benchClient struct {
	b      *testing.B
	conn   *websocket.Conn
	socket net.Conn // below conn
	frame  []byte
	buf    []byte
	id     int
}

func newBenchClient(b *testing.B, opts *server.Options) *benchClient {
	b.Helper()
	if opts == nil {
		opts = new(server.Options)
	}
	opts.Auth = server.Unauthenticated
	srv := server.New(opts)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go srv.ServeWebSocket(listener)
	c := &benchClient{b: b, buf: make([]byte, 1<<20)}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (_ net.Conn, err error) {
			c.socket, err = new(net.Dialer).DialContext(ctx, network, address)
			return c.socket, err
		},
	}}
	conn, _, err := websocket.Dial(context.Background(), "ws://"+listener.Addr().String(), &websocket.DialOptions{HTTPClient: client})
	if err != nil {
		b.Fatal(err)
	}
	conn.SetReadLimit(-1)
	c.conn = conn
	b.Cleanup(func() {
		_ = conn.CloseNow()
		_ = srv.Shutdown(context.Background())
	})
	c.send([]byte(`{"id":0,"method":"initialize","params":{"clientName":"bench"}}`))
	c.receive()
	c.send([]byte(`{"method":"initialized"}`))
	return c
}

func (c *benchClient) send(msg []byte) { c.write(c.masked(msg)) }

func (c *benchClient) write(frame []byte) {
	if _, err := c.socket.Write(frame); err != nil {
		c.b.Fatal(err)
	}
}

// masked makes a frame of a message, which is valid until the next one.
func (c *benchClient) masked(msg []byte) []byte {
	const final, text, mask, long = 0x80, 1, 0x80, 127
	c.frame = append(c.frame[:0], final|text, mask|long)
	c.frame = binary.BigEndian.AppendUint64(c.frame, uint64(len(msg)))
	c.frame = append(c.frame, 0, 0, 0, 0)
	c.frame = append(c.frame, msg...)
	return c.frame
}

// receive reads one message and returns its beginning and its size.
func (c *benchClient) receive() (start []byte, size int) {
	_, r, err := c.conn.Reader(context.Background())
	if err != nil {
		c.b.Fatal(err)
	}
	for {
		// All goes to the same place but for the beginning.
		n, err := r.Read(c.buf[min(size, 64):])
		size += n
		if err == io.EOF {
			break
		}
		if err != nil {
			c.b.Fatal(err)
		}
	}
	if bytes.HasPrefix(c.buf, []byte(`{"error"`)) {
		c.b.Fatalf("%s", c.buf[:min(size, 200)])
	}
	return c.buf[:min(size, 64)], size
}

// request makes a message of a request.
func (c *benchClient) request(method, params string) []byte {
	c.id++
	return fmt.Appendf(nil, `{"id":%d,"method":%q,"params":%s}`, c.id, method, params)
}

func (c *benchClient) call(method, params string) (size int) {
	c.send(c.request(method, params))
	_, size = c.receive()
	return size
}

// cpuTime reports how much time of processors an operation takes, client
// included; on a busy machine it tells more than the clock.
func cpuTime(b *testing.B) (report func()) {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	start := used()
	return func() { b.ReportMetric(float64((used()-start).Nanoseconds())/float64(b.N), "cpu-ns/op") }
}

const benchBytes = 8 << 20

func benchContent() []byte {
	data := make([]byte, benchBytes)
	for i := range data {
		data[i] = byte(i * i >> 8)
	}
	return data
}

// BenchmarkReadFile reads 8 MiB.
func BenchmarkReadFile(b *testing.B) {
	file := b.TempDir() + "/f"
	if err := os.WriteFile(file, benchContent(), 0o644); err != nil {
		b.Fatal(err)
	}
	b.Run("floor", func(b *testing.B) {
		b.SetBytes(benchBytes)
		defer cpuTime(b)()
		for b.Loop() {
			data, err := os.ReadFile(file)
			if err != nil || len(data) != benchBytes {
				b.Fatal(len(data), err)
			}
		}
	})
	b.Run("websocket", func(b *testing.B) {
		c := newBenchClient(b, nil)
		b.SetBytes(benchBytes)
		defer cpuTime(b)()
		for b.Loop() {
			if size := c.call("fs/readFile", `{"path":"`+file+`"}`); size < base64.StdEncoding.EncodedLen(benchBytes) {
				b.Fatal(size)
			}
		}
	})
}

// BenchmarkWriteFile writes 8 MiB over a file that is there.
func BenchmarkWriteFile(b *testing.B) {
	data := benchContent()
	for _, durable := range []bool{false, true} {
		name := ""
		if durable {
			name = "/durable"
		}
		b.Run("floor"+name, func(b *testing.B) {
			file := b.TempDir() + "/f"
			b.SetBytes(benchBytes)
			defer cpuTime(b)()
			for b.Loop() {
				if err := filesystem.WriteFile(context.Background(), file, data, filesystem.WriteOptions{Durable: durable}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("websocket"+name, func(b *testing.B) {
			file := b.TempDir() + "/f"
			c := newBenchClient(b, &server.Options{DurableWrites: durable})
			msg := c.request("fs/writeFile", `{"path":"`+file+`","dataBase64":"`+base64.StdEncoding.EncodeToString(data)+`"}`)
			b.SetBytes(benchBytes)
			defer cpuTime(b)()
			frame := c.masked(msg)
			for b.Loop() {
				c.write(frame)
				c.receive()
			}
		})
	}
}

// BenchmarkGetMetadata asks for one file at a time, and with 64 requests in
// flight. It reports the median of the time from request to answer.
func BenchmarkGetMetadata(b *testing.B) {
	file := b.TempDir() + "/f"
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		b.Fatal(err)
	}
	b.Run("floor", func(b *testing.B) {
		for b.Loop() {
			if _, err := filesystem.GetMetadata(context.Background(), file, filesystem.Follow); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, inFlight := range []int{1, 64} {
		b.Run(fmt.Sprintf("websocket/%d", inFlight), func(b *testing.B) {
			c := newBenchClient(b, nil)
			var sent [64]time.Time // by id
			send := func() {
				msg := c.request("fs/getMetadata", `{"path":"`+file+`","sandbox":null}`)
				sent[c.id%64] = time.Now()
				c.send(msg)
			}
			times := make([]time.Duration, 0, b.N)
			for range inFlight - 1 {
				send()
			}
			b.ResetTimer()
			for range b.N {
				send()
				start, _ := c.receive()
				var id int
				if _, err := fmt.Sscanf(string(start), `{"id":%d`, &id); err != nil {
					b.Fatal(err)
				}
				times = append(times, time.Since(sent[id%64]))
			}
			b.StopTimer()
			sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
			b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "p50-ns")
			b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds()), "p99-ns")
		})
	}
}

// benchTree makes a tree of files, with at most perDirectory in each directory.
func benchTree(b *testing.B, files, perDirectory int) (root string) {
	b.Helper()
	root = b.TempDir()
	for i := range files {
		dir := fmt.Sprintf("%s/%03d", root, i/perDirectory)
		if i%perDirectory == 0 {
			if err := os.Mkdir(dir, 0o755); err != nil {
				b.Fatal(err)
			}
		}
		f, err := os.Create(fmt.Sprintf("%s/%05d.go", dir, i))
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
	return root
}

// BenchmarkReadDirectory lists 5,000 entries.
func BenchmarkReadDirectory(b *testing.B) {
	const files = 5_000
	dir := benchTree(b, files, files) + "/000"
	b.Run("floor", func(b *testing.B) {
		for b.Loop() {
			seen := 0
			err := filesystem.ReadDirectory(context.Background(), dir, false, func(filesystem.DirEntry) bool { seen++; return true })
			if err != nil || seen != files {
				b.Fatal(seen, err)
			}
		}
	})
	b.Run("websocket", func(b *testing.B) {
		c := newBenchClient(b, nil)
		for b.Loop() {
			c.call("fs/readDirectory", `{"path":"`+dir+`"}`)
		}
	})
}

// BenchmarkWalk walks a tree of 100,000 files, of which an answer may have half.
func BenchmarkWalk(b *testing.B) {
	root := benchTree(b, 100_000, 200)
	b.Run("floor", func(b *testing.B) {
		options := filesystem.WalkOptions{MaxDepth: 6, MaxDirectories: 10_000, MaxEntries: 50_000, FollowDirectorySymlinks: true}
		for b.Loop() {
			found, err := filesystem.Walk(context.Background(), root, options)
			if err != nil || len(found.Entries) != options.MaxEntries || !found.Truncated {
				b.Fatal(len(found.Entries), err)
			}
		}
	})
	b.Run("websocket", func(b *testing.B) {
		c := newBenchClient(b, nil)
		const options = `{"maxDepth":6,"maxDirectories":10000,"maxEntries":50000,"followDirectorySymlinks":true}`
		for b.Loop() {
			c.call("fs/walk", `{"path":"file://`+root+`","options":`+options+`}`)
		}
	})
}
