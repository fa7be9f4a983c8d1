package stream_test

import (
	"bytes"
	"crypto/ecdh"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/stream"
)

// raw is an end that says what it likes. It is written from the comments of the package.
type raw struct {
	*network
	t      *testing.T
	conn   wireEnd
	said   []byte
	id     []byte
	secret []byte
}

// dialRaw connects to a server.
func dialRaw(t *testing.T, n *network) *raw {
	link, err := n.link(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &raw{network: n, t: t, conn: link.(wireEnd)}
}

func (r *raw) send(b ...byte) {
	r.said = append(r.said, b...)
	_, _ = r.conn.Write(b) // the other end may have closed the link
}

func (r *raw) receive(n int) []byte {
	r.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(r.conn, b); err != nil {
		r.t.Fatalf("read %d bytes: %v", n, err)
	}
	r.said = append(r.said, b...)
	return b
}

func (r *raw) hello(version, kind byte, id, nonce []byte) {
	r.send(append(append(append([]byte("\x00stream"), version, kind), id...), nonce...)...)
}

// reply returns the code, and the rest of a reply unless it is a refusal.
func (r *raw) reply() (code stream.Code, id, nonce []byte) {
	r.t.Helper()
	head := r.receive(9)
	if string(head[:8]) != "\x00stream\x01" {
		r.t.Fatalf("the reply begins with %q", head)
	}
	if head[8] != 0 {
		return stream.Code(head[8]), nil, nil
	}
	b := r.receive(52)
	if keep := binary.BigEndian.Uint32(b[48:]); keep != 1800 {
		r.t.Errorf("the stream is kept for %d s", keep)
	}
	return 0, b[:16], b[16:48]
}

// begin makes a stream.
func (r *raw) begin() {
	r.t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		r.t.Fatal(err)
	}
	r.hello(1, 0, make([]byte, 16), key.PublicKey().Bytes())
	code, id, other := r.reply()
	if code != 0 {
		r.t.Fatal(code)
	}
	public, err := ecdh.X25519().NewPublicKey(other)
	if err != nil {
		r.t.Fatal(err)
	}
	shared, err := key.ECDH(public)
	if err != nil {
		r.t.Fatal(err)
	}
	r.id, r.secret = id, mac(shared, []byte("\x00stream"), key.PublicKey().Bytes(), other)
}

func mac(key []byte, parts ...[]byte) []byte {
	m := hmac.New(sha256.New, key)
	for _, part := range parts {
		m.Write(part)
	}
	return m.Sum(nil)
}

// prove begins to resume a stream, up to the proof.
func (r *raw) prove(id, secret []byte, generation, received uint64) {
	r.t.Helper()
	r.hello(1, 1, id, bytes.Repeat([]byte{7}, 32))
	if code, _, _ := r.reply(); code != 0 {
		r.t.Fatalf("before the proof: %v", code)
	}
	proof := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, generation), received)
	r.send(append(proof, mac(secret, []byte("dial"), r.said, proof)...)...)
}

// resume resumes a stream.
func (r *raw) resume(id, secret []byte, generation, received uint64) (code stream.Code, received2 uint64) {
	r.t.Helper()
	r.prove(id, secret, generation, received)
	if code := r.receive(1)[0]; code != 0 {
		return stream.Code(code), 0
	}
	before := bytes.Clone(r.said)
	b := r.receive(40)
	if !bytes.Equal(b[8:], mac(secret, []byte("accept"), before, b[:8])) {
		r.t.Error("the server does not prove that it knows the secret")
	}
	return 0, binary.BigEndian.Uint64(b)
}

// frame sends a frame.
func (r *raw) frame(flags byte, size int, ack uint64, payload ...byte) {
	head := binary.BigEndian.AppendUint32(nil, uint32(flags)<<24|uint32(size))
	r.send(append(binary.BigEndian.AppendUint64(head, ack), payload...)...)
}

// next returns the next frame.
func (r *raw) next() (flags byte, size int, ack uint64, payload []byte) {
	r.t.Helper()
	b := r.receive(12)
	flags, size = b[0], int(binary.BigEndian.Uint32(b)&0xffffff)
	if flags&end == 0 {
		payload = r.receive(size)
	}
	return flags, size, binary.BigEndian.Uint64(b[4:]), payload
}

const done, ping, stop, end = 1, 2, 4, 8

// ends wants the last frame and then the end of the link, and returns the code.
func (r *raw) ends() stream.Code {
	r.t.Helper()
	for {
		flags, size, _, _ := r.next()
		if flags&end != 0 {
			if b, err := io.ReadAll(r.conn); len(b) != 0 || !errors.Is(err, errBroken) {
				r.t.Errorf("after the end: %q, %v", b, err)
			}
			return stream.Code(size)
		}
	}
}

// TestHostileFrames sends what no Conn sends, to a server whose program has written 10 bytes and reads nothing.
func TestHostileFrames(t *testing.T) {
	for _, c := range []struct {
		name string
		send func(r *raw)
	}{
		{"acknowledges what was never sent", func(r *raw) { r.frame(0, 0, 11) }},
		{"acknowledges the end, which was not sent", func(r *raw) { r.frame(done, 0, 11) }},
		{"acknowledges a negative number", func(r *raw) { r.frame(0, 0, math.MaxUint64) }},
		{"takes an acknowledgement back", func(r *raw) { r.frame(0, 0, 10); r.frame(0, 0, 9) }},
		{"frame that is too large", func(r *raw) { r.frame(0, 1<<16+1, 0) }},
		{"largest frame there can be", func(r *raw) { r.frame(0, 1<<24-1, 0) }},
		{"unknown flag", func(r *raw) { r.frame(16, 0, 0) }},
		{"unknown flag with the end of the stream", func(r *raw) { r.frame(16|end, 0, 0) }},
		{"code that is cut to that of a regular end", func(r *raw) { r.frame(end, 1<<8, 0) }},
		{"code that is cut to another", func(r *raw) { r.frame(end, 1<<8+int(stream.Ended), 0) }},
		{"regular end of what was not read", func(r *raw) { r.frame(end, 0, 0) }},
		{"data after the end", func(r *raw) { r.frame(done, 1, 0, 'x'); r.frame(0, 1, 0, 'y') }},
		{"two ends", func(r *raw) { r.frame(done, 1, 0, 'x'); r.frame(done, 0, 0) }},
		{"more than the window", func(r *raw) {
			for range 64 {
				r.frame(0, 1<<16, 0, make([]byte, 1<<16)...)
			}
			r.frame(0, 1, 0, 'x')
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n, streams := rawServer(t)
				r := dialRaw(t, n)
				r.begin()
				accepted := <-streams
				write(t, accepted, "0123456789")
				var got []byte
				for len(got) < 10 {
					_, _, _, payload := r.next()
					got = append(got, payload...)
				}
				c.send(r)
				if code := r.ends(); code != stream.Violated {
					t.Errorf("the server ended the stream: %v", code)
				}
				if held := stream.Held(accepted); held > 4<<20+3<<16 {
					t.Errorf("%d bytes are held", held)
				}
				if _, err := accepted.Write([]byte("x")); err == nil || accepted.Err() == nil {
					t.Errorf("the program does not notice: %v, %v", err, accepted.Err())
				}
				again := dialRaw(t, n)
				again.hello(1, 1, r.id, make([]byte, 32))
				if code, _, _ := again.reply(); code != stream.Expired {
					t.Errorf("the stream is resumed: %v", code)
				}
			})
		})
	}
}

// TestAcknowledgesEarlierLink acknowledges what was sent on an earlier link, and not again on this one.
func TestAcknowledgesEarlierLink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const all = 1 << 20 // more than a link holds
		n, streams := rawServer(t)
		first := dialRaw(t, n)
		first.begin()
		accepted := <-streams
		go accepted.Write(make([]byte, all))
		for got := 0; got < all; {
			_, size, _, _ := first.next()
			got += size
		}
		second := dialRaw(t, n)
		second.prove(first.id, first.secret, 1, 0)
		second.frame(0, 0, all) // is there before the server sends anything
		second.receive(1 + 8 + 32)
		if code := second.ends(); code != stream.Violated {
			t.Errorf("the server ended the stream: %v", code)
		}
	})
}

// TestUnansweredStreams begins streams, and never reads the reply.
func TestUnansweredStreams(t *testing.T) {
	for _, c := range []struct {
		name   string
		leave  func(w *wire)
		within time.Duration
	}{
		{"the link ends", (*wire).cut, 15 * time.Second},
		{"the link is silent", (*wire).stall, 35 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n, streams := rawServer(t)
				r := dialRaw(t, n)
				key, err := ecdh.X25519().GenerateKey(rand.Reader)
				if err != nil {
					t.Fatal(err)
				}
				r.hello(1, 0, make([]byte, 16), key.PublicKey().Bytes())
				accepted := <-streams
				synctest.Wait()
				c.leave(n.last())
				begin := time.Now()
				<-accepted.Done()
				if d := time.Since(begin); d > c.within {
					t.Errorf("it was kept for %s", d)
				}
				n.last().resume()
			})
		})
	}
}

// TestFull has an owner whose streams have no link. They make room for another: first one whose creator never used it,
// then the one that has been without a link for the longest time.
func TestFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		streams, over := make(chan *stream.Conn, 10), make(chan struct{})
		n := newNetwork(t, stream.ServerOptions{MaxStreams: 3, Handle: func(c *stream.Conn) {
			streams <- c
			<-over
		}})
		defer n.close()
		defer close(over)
		begin := func(used, cut bool) *stream.Conn {
			t.Helper()
			r := dialRaw(t, n)
			r.begin()
			if used {
				r.frame(0, 0, 0)
			}
			synctest.Wait()
			if cut {
				n.last().cut()
			}
			time.Sleep(time.Second)
			return <-streams
		}
		ended := func(streams ...*stream.Conn) (n int) {
			for _, c := range streams {
				if c.Err() == stream.Expired {
					n++
				}
			}
			return n
		}
		older, newer, unused := begin(true, true), begin(true, true), begin(false, true)
		begin(true, false)
		if ended(unused) != 1 || ended(older, newer) != 0 {
			t.Error("another stream than the unused one has made room")
		}
		begin(true, false)
		if ended(older) != 1 || ended(newer) != 0 {
			t.Error("another stream than the one without a link for longer has made room")
		}
		begin(true, false)
		r := dialRaw(t, n)
		key, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		r.hello(1, 0, make([]byte, 16), key.PublicKey().Bytes())
		if code, _, _ := r.reply(); code != stream.Full {
			t.Errorf("while all streams have a link, another one is answered: %v", code)
		}
	})
}

// rawServer returns a server, and its streams.
func rawServer(t *testing.T) (*network, <-chan *stream.Conn) {
	got, over := make(chan *stream.Conn, 100), make(chan struct{})
	n := newNetwork(t, stream.ServerOptions{Handle: func(c *stream.Conn) {
		got <- c
		<-over
	}})
	t.Cleanup(func() {
		close(over)
		n.close()
	})
	return n, got
}

// TestHostileResumes resumes a stream in ways that must fail, while it works, and that do it no harm.
func TestHostileResumes(t *testing.T) {
	random := func(n int) []byte {
		b := make([]byte, n)
		_, _ = rand.Read(b)
		return b
	}
	for _, c := range []struct {
		name string
		try  func(r *raw, id, secret []byte, generation uint64) stream.Code
		want stream.Code
	}{
		{"wrong secret", func(r *raw, id, secret []byte, g uint64) stream.Code {
			code, _ := r.resume(id, random(32), g+1, 0)
			return code
		}, stream.Refused},
		{"empty secret", func(r *raw, id, secret []byte, g uint64) stream.Code {
			code, _ := r.resume(id, nil, g+1, 0)
			return code
		}, stream.Refused},
		{"the generation of the link that it has", func(r *raw, id, secret []byte, g uint64) stream.Code {
			code, _ := r.resume(id, secret, g, 0)
			return code
		}, stream.Refused},
		{"a mac of the other end", func(r *raw, id, secret []byte, g uint64) stream.Code {
			r.hello(1, 1, id, random(32))
			r.reply()
			proof := make([]byte, 16)
			proof[7] = byte(g + 1)
			r.send(append(proof, mac(secret, []byte("accept"), r.said, proof)...)...)
			return stream.Code(r.receive(1)[0])
		}, stream.Refused},
		{"an identifier that was never used", func(r *raw, id, secret []byte, g uint64) stream.Code {
			r.hello(1, 1, random(16), random(32))
			code, _, _ := r.reply()
			return code
		}, stream.Unknown},
		{"an identifier of this server that was never used", func(r *raw, id, secret []byte, g uint64) stream.Code {
			r.hello(1, 1, append(bytes.Clone(id[:8]), random(8)...), random(32))
			code, _, _ := r.reply()
			return code
		}, stream.Expired},
		{"another version", func(r *raw, id, secret []byte, g uint64) stream.Code {
			r.hello(2, 1, id, random(32))
			code, _, _ := r.reply()
			return code
		}, stream.Version},
		{"another kind", func(r *raw, id, secret []byte, g uint64) stream.Code {
			r.hello(1, 2, id, random(32))
			code, _, _ := r.reply()
			return code
		}, stream.Violated},
		{"a weak public key", func(r *raw, id, secret []byte, g uint64) stream.Code {
			r.hello(1, 0, id, make([]byte, 32))
			code, _, _ := r.reply()
			return code
		}, stream.Violated},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n, dialed, accepted := pair(t, stream.Options{})
				n.last().cut() // so that the stream was resumed before
				write(t, dialed, "x")
				read(t, accepted, "x")
				links := n.links()
				r := dialRaw(t, n)
				id, secret, generation := stream.Secrets(dialed)
				if code := c.try(r, id, secret, generation); code != c.want {
					t.Errorf("the server says: %v", code)
				}
				if _, err := io.ReadAll(r.conn); !errors.Is(err, errBroken) {
					t.Errorf("the link stays open: %v", err)
				}
				write(t, dialed, "y")
				read(t, accepted, "y")
				write(t, accepted, "z")
				read(t, dialed, "z")
				if n.links() != links+1 {
					t.Error("the stream has lost its link")
				}
			})
		})
	}
}

// TestOtherOwner resumes a stream by a link of another owner.
func TestOtherOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, dialed, _ := pair(t, stream.Options{})
		w := newWire()
		n.serves.Go(func() { _ = n.server.Serve("another", wireEnd{w, 1}) })
		r := &raw{network: n, t: t, conn: wireEnd{w, 0}}
		id, _, _ := stream.Secrets(dialed)
		r.hello(1, 1, id, make([]byte, 32))
		if code, _, _ := r.reply(); code != stream.Expired {
			t.Errorf("the server says that there is such a stream: %v", code)
		}
	})
}

// TestReplay sends all that an end has sent once more.
func TestReplay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, dialed, accepted := pair(t, stream.Options{})
		for range 2 { // the second link was resumed
			write(t, dialed, "x")
			read(t, accepted, "x")
			synctest.Wait()
			w := newWire()
			n.serves.Go(func() { _ = n.server.Serve("owner", wireEnd{w, 1}) })
			replayed := wireEnd{w, 0}
			if _, err := replayed.Write(n.last().record(0)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			_ = replayed.Close()
			write(t, dialed, "y")
			read(t, accepted, "y")
			n.last().cut()
			synctest.Wait()
		}
	})
}

// TestWrongOffsets resumes a stream with the right secret, at a number that cannot be.
func TestWrongOffsets(t *testing.T) {
	for _, c := range []struct {
		name     string
		received uint64
		want     stream.Code
	}{
		{"what was acknowledged", 4, 0},
		{"what was sent", 10, 0},
		{"before what was acknowledged", 3, stream.Violated},
		{"what was never sent", 11, stream.Violated},
		{"far in the future", 1 << 40, stream.Violated},
		{"negative", math.MaxUint64, stream.Violated},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n, dialed, accepted := pair(t, stream.Options{})
				write(t, accepted, "0123")
				read(t, dialed, "0123")
				dialed.SetWaiting(true)
				time.Sleep(6 * time.Second) // a ping, and its answer
				write(t, accepted, "456789")
				read(t, dialed, "456789")
				n.setDown(true)
				r := (*raw)(nil)
				id, secret, generation := stream.Secrets(dialed)
				w := newWire()
				n.serves.Go(func() { _ = n.server.Serve("owner", wireEnd{w, 1}) })
				r = &raw{network: n, t: t, conn: wireEnd{w, 0}}
				code, _ := r.resume(id, secret, generation+1, c.received)
				if code != c.want {
					t.Fatalf("the server says: %v", code)
				}
				if code == 0 {
					flags, _, ack, payload := r.next()
					if want := "0123456789"[c.received:]; flags != 0 || ack != 0 || string(payload) != want {
						t.Errorf("the first frame has flags %d, acknowledges %d, and brings %q, want %q", flags, ack, payload, want)
					}
				}
			})
		})
	}
}

// TestDuplicateResumes resumes a stream over many links at once. One of them gets it, and nothing is lost.
func TestDuplicateResumes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, _ := rawServer(t)
		first := dialRaw(t, n)
		first.begin()
		const links = 20
		codes := make(chan stream.Code, links)
		for i := range links {
			go func() {
				r := dialRaw(t, n)
				code, _ := r.resume(first.id, first.secret, uint64(1+i%10), 0)
				if code == 0 { // keeps the link
					if _, err := io.ReadAll(r.conn); !errors.Is(err, errBroken) {
						t.Error(err)
					}
				}
				codes <- code
			}()
		}
		synctest.Wait()
		// Only the link with the stream is open.
		refused := 0
		for len(codes) > 0 {
			if code := <-codes; code == stream.Refused {
				refused++
			}
		}
		if refused < links/2 {
			t.Errorf("%d of %d were refused", refused, links)
		}
		last := dialRaw(t, n)
		if code, received := last.resume(first.id, first.secret, 11, 0); code != 0 || received != 0 {
			t.Errorf("after all of them: %v, %d bytes", code, received)
		}
	})
}

// TestReplaced resumes a stream whose old link still seems to work at the other end.
func TestReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, dialed, accepted := pair(t, stream.Options{})
		blocked := make(chan error, 1)
		n.last().stall()
		go func() {
			_, err := accepted.Write(sequence(1, 0, 1<<20)) // more than the link takes
			blocked <- err
		}()
		write(t, dialed, "x")
		read(t, accepted, "x") // over another link, long before the server notices
		if err := <-blocked; err != nil {
			t.Error(err)
		}
		got := make([]byte, 1<<20)
		if _, err := io.ReadFull(dialed, got); err != nil || !bytes.Equal(got, sequence(1, 0, 1<<20)) {
			t.Errorf("wrong bytes: %v", err)
		}
		if n.links() != 2 {
			t.Errorf("%d links were made", n.links())
		}
	})
}

// FuzzPeer has a peer that breaks the rules anywhere, over several links. The program reads the bytes that were sent, in
// order, and never others; the stream holds no more than it may; and another stream works.
func FuzzPeer(f *testing.F) {
	const (
		payload = iota
		flags
		acknowledge
		resume
		cutOff
		programWrites
		size
		ops
	)
	f.Add([]byte{programWrites, 255, acknowledge, 100, payload, 200, resume, 90, acknowledge, 255, resume, 120, payload, 3})
	f.Add([]byte{payload, 255, payload, 255, programWrites, 10, flags, ping, cutOff, 0, resume, 0, flags, done, flags, stop, resume, 9})
	f.Add([]byte{size, 9, resume, 0, payload, 250, flags, end, payload, 1})
	f.Fuzz(func(t *testing.T, plan []byte) {
		synctest.Test(t, func(t *testing.T) {
			n, streams := rawServer(t)
			other, err := stream.Dial(t.Context(), stream.Options{Link: n.link})
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			neighbour := <-streams
			first := dialRaw(t, n)
			first.begin()
			r := first
			accepted := <-streams
			go expectPrefix(t, accepted)
			discard := func(r *raw) { _, _ = io.Copy(io.Discard, r.conn) }
			go discard(r)
			at, ack, generation := 0, uint64(0), uint64(0)
			for ; len(plan) >= 2; plan = plan[2:] {
				synctest.Wait()
				if held := stream.Held(accepted); held > 2*(4<<20)+5<<16 {
					t.Fatalf("%d bytes are held", held)
				}
				if accepted.Err() != nil {
					break
				}
				arg := plan[1]
				switch plan[0] % ops {
				case payload:
					b := sequence(1, at, int(arg)*int(arg))
					at = (at + len(b)) % period
					r.frame(0, len(b), ack, b...)
				case flags:
					r.frame(arg, 0, ack)
				case acknowledge:
					ack = uint64(arg) << 8
					r.frame(0, 0, ack)
				case resume:
					r, generation = dialRaw(t, n), generation+1
					code, received := r.resume(first.id, first.secret, generation, uint64(arg)<<8)
					if at = int(received) % period; code != 0 && accepted.Err() == nil {
						t.Errorf("refused: %v", code)
					}
					go discard(r)
				case cutOff:
					n.last().cut()
				case programWrites:
					go accepted.Write(make([]byte, int(arg)<<8))
				case size:
					r.frame(0, int(arg)<<8, ack)
					n.last().cut()
				}
			}
			write(t, other, "x")
			read(t, neighbour, "x")
			n.last().cut()
		})
	})
}

// expectPrefix reads a sequence until the stream ends.
func expectPrefix(t *testing.T, r io.Reader) {
	buf := make([]byte, 1<<20)
	for at := 0; ; {
		n, err := r.Read(buf)
		if !bytes.Equal(buf[:n], sequence(1, at, n)) {
			t.Errorf("the %d bytes at %d are not what was sent", n, at)
			return
		}
		if err != nil {
			return
		}
		at = (at + n) % period
	}
}

// TestHandshakeStops has an end that says only the first bytes of the handshake, and goes or stays.
func TestHandshakeStops(t *testing.T) {
	for _, leaves := range []bool{true, false} {
		t.Run(fmt.Sprint("leaves=", leaves), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n, dialed, accepted := pair(t, stream.Options{})
				n.last().cut()
				write(t, dialed, "x")
				read(t, accepted, "x")
				synctest.Wait()
				resume := n.last().record(0)[:57+48] // hello and proof
				for i := range resume {
					w := newWire()
					n.serves.Go(func() { _ = n.server.Serve("owner", wireEnd{w, 1}) })
					e := wireEnd{w, 0}
					if _, err := e.Write(resume[:i]); err != nil {
						t.Fatal(err)
					}
					if leaves {
						_ = e.Close()
					}
					begin := time.Now()
					_, _ = io.ReadAll(e)
					if d := time.Since(begin); d > 15*time.Second {
						t.Errorf("after %d bytes the link was closed after %s", i, d)
					}
				}
				write(t, dialed, "y")
				read(t, accepted, "y")
			})
		})
	}
}

// TestDialedHandshakeStops is the same for the end that dials.
func TestDialedHandshakeStops(t *testing.T) {
	for i := range 62 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(t, stream.ServerOptions{Handle: func(c *stream.Conn) { _, _ = io.Copy(io.Discard, c) }})
				n.next = func(_ int, w *wire) error {
					w.stall()
					w.ways[1].allowed, w.ways[0].allowed = i, 57
					return nil
				}
				begin := time.Now()
				dialed, err := stream.Dial(t.Context(), stream.Options{Link: n.link})
				if d := time.Since(begin); d > 30*time.Second || (err == nil) != (i == 61) {
					t.Errorf("after %s: %v", d, err)
				}
				if err == nil {
					_ = dialed.Close()
				}
				n.last().resume()
				n.close()
			})
		})
	}
}

// TestNoise dials something that is not the other end of a stream.
func TestNoise(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, noise := range []string{"Welcome to Ubuntu!\n", "\x00stream\x02\x00", "\x00stream\x02\x01", ""} {
			_, err := stream.Dial(t.Context(), stream.Options{Link: noisy(noise)})
			if noise == "\x00stream\x02\x00" || noise == "\x00stream\x02\x01" {
				if !errors.Is(err, stream.Version) {
					t.Errorf("%q: %v", noise, err)
				}
			} else if err == nil {
				t.Errorf("%q is taken for a stream", noise)
			}
		}
	})
}
