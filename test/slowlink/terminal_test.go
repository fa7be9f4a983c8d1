//go:build linux

package main

import (
	"context"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/internal/testkit/slowlink"
)

// TestTerminals times the echo of keys and the output of seq over a slow link, with ssh and
// with the client, which compresses or not.
func TestTerminals(t *testing.T) {
	if os.Getenv("EXEC_SERVER_MEASURE_COPIES") == "" {
		t.Skip("set EXEC_SERVER_MEASURE_COPIES to measure for minutes")
	}
	dir := testkit.SocketDir(t)
	m := &machine{dir: dir, program: build(t, dir)}
	m.serve(t)
	sshd := testkit.StartSSHD(t, dir)

	m.through(t, sshd.Address, func(port string, link *slowlink.Link) {
		cat := sshd.Command(port, "cat")
		cat.Args = slices.Insert(cat.Args, 1, "-tt")
		stdin, stdout := testkit.StartPiped(t, cat)
		echo(t, "ssh -tt", stdin, stdout)
		_ = cat.Process.Kill()
		_ = cat.Wait()
		seq(t, "ssh", link, func(out io.Writer) error {
			c := sshd.Command(port, "seq", "1", "1000000")
			c.Stdout = out
			return c.Run()
		})
	})
	for name, compression := range map[string]client.Compression{
		"plain": client.CompressNever, "compressed": client.CompressAlways,
	} {
		m.through(t, m.server, func(port string, link *slowlink.Link) {
			env, err := client.Dial(t.Context(), "ws://127.0.0.1:"+port, &client.Options{Compression: compression})
			if err != nil {
				t.Fatal(err)
			}
			defer env.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cat := env.Command(ctx, "cat")
			cat.TTY = new(client.Size)
			stdin, stdout := startClient(t, cat)
			echo(t, name, stdin, stdout)
			cancel()
			_ = cat.Wait() // it was cancelled
			seq(t, name, link, func(out io.Writer) error {
				c := env.Command(t.Context(), "seq", "1", "1000000")
				c.Stdout = out
				return c.Run()
			})
		})
	}
}

// through makes a link of its own to an address.
func (m *machine) through(t *testing.T, address string, use func(port string, link *slowlink.Link)) {
	t.Helper()
	link, err := slowlink.Listen("127.0.0.1:0", address, slowlink.Options{BitsPerSecond: bitsPerSecond, RoundTrip: roundTrip})
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	_, port, _ := net.SplitHostPort(link.Addr())
	use(port, link)
}

func startClient(t *testing.T, c *client.Cmd) (stdin io.Writer, stdout io.Reader) {
	t.Helper()
	stdin, err := c.StdinPipe()
	if err == nil {
		stdout, err = c.StdoutPipe()
	}
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return stdin, stdout
}

// echo types keys, each after the echo of the one before.
func echo(t *testing.T, name string, stdin io.Writer, stdout io.Reader) {
	t.Helper()
	const keys = 200
	var took []time.Duration
	for range keys {
		begin, key := time.Now(), make([]byte, 1)
		if _, err := stdin.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(stdout, key); err != nil || key[0] != 'x' {
			t.Fatalf("%s: the echo is %q, %v", name, key, err)
		}
		took = append(took, time.Since(begin))
	}
	took = took[1:] // the first waited for the command to start
	slices.Sort(took)
	t.Logf("%-12s key: p50 %5.1f ms, p99 %5.1f ms", name, milliseconds(took[len(took)/2]), milliseconds(took[len(took)*99/100]))
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// seq times a command that writes many lines.
func seq(t *testing.T, name string, link *slowlink.Link, run func(out io.Writer) error) {
	t.Helper()
	_, before := link.Bytes()
	var out lengthOf
	begin := time.Now()
	if err := run(&out); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	took := time.Since(begin)
	_, after := link.Bytes()
	t.Logf("%-12s seq: %.2f s, %.3f of its %d bytes", name, took.Seconds(), float64(after-before)/float64(out), out)
}

// lengthOf counts what is written to it.
type lengthOf int64

func (n *lengthOf) Write(b []byte) (int, error) {
	*n += lengthOf(len(b))
	return len(b), nil
}
