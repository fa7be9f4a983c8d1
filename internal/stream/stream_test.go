package stream_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/stream"
)

// period is a prime number, so that no chunk or frame is like another one for long.
const period = 1_000_003

// noise is random, and begins anew after period.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, period+4<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b[:period])
	for i := period; i < len(b); i += period {
		copy(b[i:], b[:period])
	}
	return b
})

// sequence returns n bytes from position at on.
func sequence(seed uint64, at, n int) []byte {
	i := (at + int(seed)*1000) % period
	return noise()[i : i+n]
}

// send writes a sequence of n bytes in pieces, and ends the direction.
func send(c *stream.Conn, seed uint64, n int, piece func() int) error {
	for at := 0; at < n; {
		m := min(max(1, piece()), n-at)
		if wrote, err := c.Write(sequence(seed, at, m)); err != nil || wrote != m {
			return fmt.Errorf("write at %d: %d of %d bytes, %w", at, wrote, m, err)
		}
		at += m
	}
	return c.CloseWrite()
}

// expect reads a sequence of n bytes in pieces, up to io.EOF.
func expect(c io.Reader, seed uint64, n int, piece func() int) error {
	buf := make([]byte, 1<<20)
	at := 0
	for {
		m, err := c.Read(buf[:min(max(1, piece()), len(buf))])
		if !bytes.Equal(buf[:m], sequence(seed, at, m)) {
			return fmt.Errorf("the %d bytes at %d are not what was written", m, at)
		}
		at += m
		if err == io.EOF && at == n {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read at %d of %d: %w", at, n, err)
		}
	}
}

// sizes returns pseudo-random sizes up to most.
func sizes(seed uint64, most int) func() int {
	r := rand.New(rand.NewPCG(seed, 1))
	return func() int {
		return 1 + r.IntN(1<<r.IntN(1+bits(most)))
	}
}

func bits(n int) (b int) {
	for ; n > 1; n >>= 1 {
		b++
	}
	return b
}

// exchange sends up bytes and down bytes, and closes both ends.
func exchange(dialed, accepted *stream.Conn, up, down int, seed uint64, most int) error {
	errs := make(chan error, 4)
	var wg sync.WaitGroup
	run := func(what string, f func() error) {
		wg.Go(func() {
			if err := f(); err != nil {
				errs <- fmt.Errorf("%s: %w", what, err)
				_, _ = dialed.Close(), accepted.Close()
			}
		})
	}
	run("up, write", func() error { return send(dialed, 1, up, sizes(seed, most)) })
	run("up, read", func() error { return expect(accepted, 1, up, sizes(seed+1, most)) })
	run("down, write", func() error { return send(accepted, 2, down, sizes(seed+2, most)) })
	run("down, read", func() error { return expect(dialed, 2, down, sizes(seed+3, most)) })
	wg.Wait()
	_, _ = accepted.Close(), dialed.Close()
	<-dialed.Done()
	close(errs)
	if err := dialed.Err(); err != stream.ErrUnread { // the last acknowledgement may be lost
		return errors.Join(<-errs, err)
	}
	return <-errs
}

func TestStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, dialed, accepted := pair(t, stream.Options{})
		if err := exchange(dialed, accepted, 20<<20, 10<<20, 1, 1<<18); err != nil {
			t.Error(err)
		}
		<-accepted.Done()
		if err := accepted.Err(); err != nil {
			t.Errorf("the end that accepts: %v", err)
		}
	})
}

func TestWriteTo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, dialed, accepted := pair(t, stream.Options{})
		const n = 10 << 20
		r, w := io.Pipe()
		go func() {
			_, err := io.Copy(w, dialed)
			w.CloseWithError(err)
		}()
		go send(accepted, 1, n, sizes(1, 1<<18))
		if err := expect(r, 1, n, sizes(2, 1<<18)); err != nil {
			t.Error(err)
		}
	})
}

// TestCloseDuringWriteTo closes an end while WriteTo writes. What it writes must not become the memory
// of another stream.
func TestCloseDuringWriteTo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, dialed, accepted := pair(t, stream.Options{})
		_, other, another := pair(t, stream.Options{})
		if _, err := accepted.Write(sequence(1, 0, 1<<20)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		_, err := dialed.WriteTo(writerFunc(func(p []byte) (int, error) {
			before := bytes.Clone(p)
			_ = dialed.Close()
			if _, err := another.Write(sequence(2, 0, 1<<20)); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if !bytes.Equal(p, before) {
				t.Error("the bytes have changed")
			}
			return len(p), nil
		}))
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("the error is %v", err)
		}
		_, _ = other.Close(), another.Close()
	})
}

// TestWriterPanics has a writer that panics. The stream can be used after that.
func TestWriterPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, dialed, accepted := pair(t, stream.Options{})
		write(t, accepted, "x")
		func() {
			defer func() {
				if got := recover(); got != "it is broken" {
					t.Errorf("the panic is %v", got)
				}
			}()
			_, _ = dialed.WriteTo(writerFunc(func([]byte) (int, error) { panic("it is broken") }))
		}()
		read(t, dialed, "x")
	})
}

// TestShortWriter has a writer that takes nothing, without an error.
func TestShortWriter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, dialed, accepted := pair(t, stream.Options{})
		write(t, accepted, "xyz")
		synctest.Wait()
		calls := 0
		_, err := dialed.WriteTo(writerFunc(func([]byte) (int, error) {
			if calls++; calls > 1 {
				return 0, errors.New("called again")
			}
			return 1, nil
		}))
		if err != io.ErrShortWrite {
			t.Errorf("the error is %v", err)
		}
		read(t, dialed, "yz")
	})
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestHalfClose closes one direction while the link is away, and uses the other.
func TestHalfClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, dialed, accepted := pair(t, stream.Options{})
		n.setDown(true)
		n.last().cut()
		write(t, dialed, "question")
		if err := dialed.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := dialed.Write([]byte("more")); err == nil {
			t.Error("a write after CloseWrite has no error")
		}
		n.setDown(false)
		if got, err := io.ReadAll(accepted); string(got) != "question" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		n.last().cut()
		write(t, accepted, "answer")
		_ = accepted.Close()
		if got, err := io.ReadAll(dialed); string(got) != "answer" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		_ = dialed.Close()
		<-dialed.Done()
		<-accepted.Done()
		if err := errors.Join(dialed.Err(), accepted.Err()); err != nil {
			t.Error(err)
		}
	})
}

func write(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if n, err := io.WriteString(w, text); n != len(text) || err != nil {
		t.Fatalf("write %q: %d, %v", text, n, err)
	}
}

func read(t *testing.T, r io.Reader, text string) {
	t.Helper()
	buf := make([]byte, len(text))
	if _, err := io.ReadFull(r, buf); string(buf) != text || err != nil {
		t.Fatalf("read %q, %v, want %q", buf, err, text)
	}
}

// events records the calls of Lost and Back with the time since the beginning.
type events struct {
	begin time.Time
	mu    sync.Mutex
	list  []string
}

func (e *events) options() stream.Options {
	e.begin = time.Now()
	return stream.Options{
		Lost: func(err error) { e.add("lost") },
		Back: func() { e.add("back") },
	}
}

func (e *events) add(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, fmt.Sprintf("%s %s", what, time.Since(e.begin)))
}

func (e *events) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.list, ", ")
}

// TestBlackhole has links that neither work nor end.
func TestBlackhole(t *testing.T) {
	for _, c := range []struct {
		name string
		use  func(dialed *stream.Conn)
		wait time.Duration
		want string
	}{
		{"unacknowledged bytes", func(c *stream.Conn) { _, _ = c.Write([]byte("x")) }, time.Minute, "lost 20s, back 20s"},
		{"the program waits", func(c *stream.Conn) { c.SetWaiting(true) }, time.Minute, "lost 20s, back 20s"},
		{"idle", func(*stream.Conn) {}, 90 * time.Second, "lost 1m20s, back 1m20s"},
		{"idle, and not for long enough", func(*stream.Conn) {}, time.Minute, ""},
		{"more than links hold", func(c *stream.Conn) { _, _ = c.Write(make([]byte, 1<<20)) }, time.Minute, "lost 20s, back 20s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var e events
				n, dialed, accepted := pair(t, e.options())
				synctest.Wait()
				first := n.last()
				first.stall()
				c.use(dialed)
				time.Sleep(c.wait)
				synctest.Wait()
				if got := e.String(); got != c.want {
					t.Errorf("saw %q, want %q", got, c.want)
				}
				dialed.SetWaiting(false)
				first.resume() // what it held arrives late
				write(t, accepted, "y")
				read(t, dialed, "y")
			})
		})
	}
}

// TestStallEnds has a link that stalls for less than it may, again and again.
func TestStallEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e events
		n, dialed, accepted := pair(t, e.options())
		for range 20 {
			n.last().stall()
			write(t, dialed, "x")
			time.Sleep(14 * time.Second)
			n.last().resume()
			read(t, accepted, "x")
			time.Sleep(time.Second)
		}
		if e.String() != "" {
			t.Errorf("saw %s", &e)
		}
	})
}

// TestSlowLink has a link on which a frame takes a minute. A ping comes behind many, and the end that
// receives them has nothing else to say.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e events
		n, dialed, accepted := pair(t, e.options())
		synctest.Wait()
		const all = 1 << 20
		slow := n.last()
		slow.stall()
		go send(accepted, 1, all, func() int { return all })
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Second):
					slow.trickle(1 << 10)
				}
			}
		}()
		if err := expect(dialed, 1, all, func() int { return all }); err != nil {
			t.Error(err)
		}
		close(stop)
		if e.String() != "" || n.links() > 1 {
			t.Errorf("%d links: %s", n.links(), &e)
		}
		slow.resume()
	})
}

// TestNobodyReads has a program that does not read for a day.
func TestNobodyReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var e events
		_, dialed, accepted := pair(t, e.options())
		const all = 10 << 20
		go send(dialed, 1, all, func() int { return 1 << 20 })
		time.Sleep(24 * time.Hour)
		if held := stream.Held(dialed) + stream.Held(accepted); held > 2*(4<<20)+4<<16 {
			t.Errorf("%d bytes are held", held)
		}
		if e.String() != "" {
			t.Errorf("saw %s", &e)
		}
		if err := expect(accepted, 1, all, func() int { return 1 << 20 }); err != nil {
			t.Error(err)
		}
	})
}

// TestCloseUnblocks closes an end whose reads and writes are blocked.
func TestCloseUnblocks(t *testing.T) {
	for _, end := range []string{"dials", "accepts"} {
		for _, link := range []string{"works", "stalls", "is away"} {
			t.Run(fmt.Sprintf("end that %s, link that %s", end, link), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					n, dialed, accepted := pair(t, stream.Options{})
					c := dialed
					if end == "accepts" {
						c = accepted
					}
					switch link {
					case "stalls":
						n.last().stall()
						defer n.last().resume()
					case "is away":
						n.setDown(true)
						n.last().cut()
					}
					errs := make(chan error, 2)
					go func() {
						_, err := c.Write(make([]byte, 20<<20))
						errs <- err
					}()
					go func() {
						_, err := c.Read(make([]byte, 1))
						errs <- err
					}()
					synctest.Wait()
					before := time.Now()
					_ = c.Close()
					for range 2 {
						if err := <-errs; !errors.Is(err, net.ErrClosed) {
							t.Errorf("the error is %v", err)
						}
					}
					if d := time.Since(before); d != 0 {
						t.Errorf("it took %s", d)
					}
				})
			})
		}
	}
}

// TestClosedPeer writes to an end whose program has closed it.
func TestClosedPeer(t *testing.T) {
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprint("cut=", cut), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n, dialed, accepted := pair(t, stream.Options{})
				blocked := make(chan error, 1)
				go func() {
					_, err := dialed.Write(make([]byte, 20<<20))
					blocked <- err
				}()
				write(t, accepted, "last words")
				if cut {
					n.last().cut()
				}
				_ = accepted.Close()
				if err := <-blocked; err == nil {
					t.Error("the write has no error")
				}
				if got, err := io.ReadAll(dialed); string(got) != "last words" || err != nil {
					t.Errorf("read %q, %v", got, err)
				}
				<-dialed.Done()
				<-accepted.Done()
			})
		})
	}
}

// TestCloseWithoutReader closes an end, whose peer does not read what was written before.
func TestCloseWithoutReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, dialed, accepted := pair(t, stream.Options{})
		write(t, accepted, "unread")
		_ = accepted.Close()
		begin := time.Now()
		<-accepted.Done()
		if d := time.Since(begin); d < 30*time.Minute || d > 31*time.Minute {
			t.Errorf("it was kept for %s", d)
		}
		read(t, dialed, "unread")
	})
}

// TestExpiry leaves a stream without a link for too long.
func TestExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, dialed, accepted := pairWith(t, stream.ServerOptions{Keep: time.Minute}, stream.Options{})
		write(t, dialed, "x")
		synctest.Wait()
		n.setDown(true)
		n.last().cut()
		time.Sleep(45 * time.Second)
		n.setDown(false)
		write(t, dialed, "y")
		read(t, accepted, "xy")

		n.setDown(true)
		n.last().cut()
		begin := time.Now()
		for _, c := range []*stream.Conn{accepted, dialed} {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, stream.Expired) {
				t.Errorf("the error of a read is %v", err)
			}
			if _, err := c.Write(make([]byte, 1)); !errors.Is(err, stream.Expired) {
				t.Errorf("the error of a write is %v", err)
			}
		}
		if d := time.Since(begin); d < time.Minute || d > 80*time.Second {
			t.Errorf("it took %s", d)
		}
		if err := dialed.Err(); !errors.Is(err, errDown) {
			t.Errorf("the error does not say why: %v", err)
		}
	})
}

// TestExpiredElsewhere has an end that comes back after the other has forgotten the stream.
func TestExpiredElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, dialed, accepted := pairWith(t, stream.ServerOptions{Keep: time.Minute}, stream.Options{})
		synctest.Wait()
		var refused bool
		n.next = func(i int, _ *wire) error {
			refused = true
			<-accepted.Done() // ssh takes long
			return nil
		}
		n.last().cut()
		<-dialed.Done()
		if err := dialed.Err(); !refused || err != stream.Expired {
			t.Errorf("the error is %v", err)
		}
	})
}

// TestAnotherServer has a server that was started again.
func TestAnotherServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, dialed, accepted := pair(t, stream.Options{})
		old := n.server
		n.mu.Lock()
		n.server = stream.NewServer(stream.ServerOptions{})
		n.mu.Unlock()
		n.last().cut()
		<-dialed.Done()
		if err := dialed.Err(); err != stream.Unknown {
			t.Errorf("the error is %v", err)
		}
		_ = accepted.Close()
		go old.Close() // waits for the handler
		<-accepted.Done()
	})
}

// TestServerCloses ends streams with and without a link, and refuses others.
func TestServerCloses(t *testing.T) {
	for _, linked := range []bool{true, false} {
		t.Run(fmt.Sprint("linked=", linked), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n, dialed, accepted := pair(t, stream.Options{})
				write(t, accepted, "x")
				synctest.Wait()
				want := stream.Ended
				if !linked {
					n.setDown(true)
					n.last().cut()
					synctest.Wait()
					want = stream.Expired
				}
				go n.server.Close() // waits for the handler
				<-accepted.Done()
				n.setDown(false)
				read(t, dialed, "x")
				if _, err := dialed.Read(make([]byte, 1)); err != want {
					t.Errorf("the error is %v", err)
				}
				if _, err := stream.Dial(t.Context(), stream.Options{Link: n.link}); !errors.Is(err, stream.Ended) {
					t.Errorf("another stream: %v", err)
				}
			})
		})
	}
}

// TestPauses looks at the times of the attempts to make a link.
func TestPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, dialed, _ := pair(t, stream.Options{})
		begin := time.Now()
		var at []time.Duration
		n.next = func(int, *wire) error {
			at = append(at, time.Since(begin))
			return errDown
		}
		n.last().cut()
		<-dialed.Done()
		if at[0] != 0 {
			t.Errorf("the first attempt came after %s", at[0])
		}
		for i, this := range at[1:] {
			pause, longest := this-at[i], min(max(at[i]/8, 250*time.Millisecond), 30*time.Second)
			if pause < longest/2 || pause > longest {
				t.Errorf("a pause of %s after %s, want up to %s", pause, at[i], longest)
			}
		}
		if last := at[len(at)-1]; last < 30*time.Minute || last > 31*time.Minute {
			t.Errorf("the last attempt came after %s", last)
		}
	})
}

// TestUselessLinks has links that break after the handshake.
func TestUselessLinks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, dialed, _ := pair(t, stream.Options{})
		synctest.Wait()
		n.next = func(_ int, w *wire) error {
			w.ways[1].cut = stream.ResumedAfter
			return nil
		}
		n.last().cut()
		time.Sleep(time.Minute)
		if made := n.links(); made < 10 || made > 60 {
			t.Errorf("%d links were made in a minute", made)
		}
		n.mu.Lock()
		n.next = nil
		n.mu.Unlock()
		_ = dialed.Close()
	})
}

// TestMaxStreams bounds the streams of an owner.
func TestMaxStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t, stream.ServerOptions{MaxStreams: 2, Handle: func(c *stream.Conn) { _, _ = io.Copy(io.Discard, c) }})
		defer n.close()
		dial := func() (*stream.Conn, error) { return stream.Dial(t.Context(), stream.Options{Link: n.link}) }
		first, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		second, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		if _, err := dial(); !errors.Is(err, stream.Full) {
			t.Errorf("the third stream: %v", err)
		}
		synctest.Wait()
		_ = first.Close()
		<-first.Done()
		synctest.Wait()
		third, err := dial()
		if err != nil {
			t.Fatalf("after the first has ended: %v", err)
		}
		_ = third.Close()
	})
}
