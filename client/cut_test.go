//go:build unix

package client_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/server"
)

// cutScale is what the cut tests do: a short version, or with
// EXEC_SERVER_TEST_CUTS=full the promise in its whole length.
func cutScale() (streamBytes int64, streamCuts, writes, writeCuts int) {
	if os.Getenv("EXEC_SERVER_TEST_CUTS") == "full" {
		return 1 << 30, 1000, 10_000, 1000
	}
	return 2 << 20, 16, 200, 20
}

// patternChecker checks that what is written to it is testkit.Pattern.
type patternChecker struct {
	n    int64
	bad  error
	word [8]byte
}

func (c *patternChecker) Write(b []byte) (int, error) {
	for i := 0; i < len(b); {
		at := c.n % 8
		binary.BigEndian.PutUint64(c.word[:], uint64(c.n/8))
		k := min(len(b)-i, int(8-at))
		if !bytes.Equal(b[i:i+k], c.word[at:int(at)+k]) {
			c.bad = fmt.Errorf("byte %d is wrong", c.n)
			return 0, c.bad
		}
		i += k
		c.n += int64(k)
	}
	return len(b), nil
}

// Whatever the link does, what a process wrote arrives, once and in order.
func TestCutsDuringStream(t *testing.T) {
	t.Parallel()
	for name, serve := range listening {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cutDuringStream(t, serve(t, nil))
		})
	}
}

// listening are the servers of ours that a link can break to.
var listening = map[string]func(testing.TB, *server.Options) (url string){"ws": serveWebSocket, "unix": serveUnix}

func cutDuringStream(t *testing.T, url string) {
	size, cuts, _, _ := cutScale()
	p := newProxy(t, url)
	env, err := client.Dial(background(t), p.url, nil)
	env = opened(t, env, err)
	p.cutEvery(size/2/int64(cuts), cuts)
	var out patternChecker
	c := child(env, "pattern", strconv.FormatInt(size, 10))
	c.Stdout = &out
	if exit, ok := errors.AsType[*client.ExitError](c.Run()); !ok || exit.ExitCode != 9 {
		t.Errorf("Run: %v", exit)
	}
	if out.n != size {
		t.Errorf("%d bytes of %d", out.n, size)
	}
	if n := p.cutCount(); n < cuts*3/4 {
		t.Errorf("only %d cuts", n)
	}
	t.Logf("%d bytes, %d cuts", out.n, p.cutCount())
}

// Whatever the link does, what is copied to a process from Stdin arrives, once and in order,
// although several writes are under way.
func TestCutsDuringStdin(t *testing.T) {
	t.Parallel()
	for name, serve := range listening {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			size, cuts, _, _ := cutScale()
			p := newProxy(t, serve(t, nil))
			env, err := client.Dial(background(t), p.url, nil)
			env = opened(t, env, err)
			p.cutEvery(size/2/int64(cuts), cuts)
			var out patternChecker
			c := child(env, "cat")
			// Not a bytes.Reader, which would be one Write.
			c.Stdin, c.Stdout = io.MultiReader(bytes.NewReader(testkit.Pattern(size))), &out
			if err := c.Run(); err != nil {
				t.Error(err)
			}
			if out.n != size {
				t.Errorf("%d bytes of %d", out.n, size)
			}
			if n := p.cutCount(); n < cuts*3/4 {
				t.Errorf("only %d cuts", n)
			}
		})
	}
}

// A write that a broken connection has lost is repeated although nothing more comes from
// Stdin.
func TestLostWriteBeforeIdleStdin(t *testing.T) {
	t.Parallel()
	p := newProxy(t, serveWebSocket(t, nil))
	env, err := client.Dial(background(t), p.url, nil)
	env = opened(t, env, err)
	stdin, input := io.Pipe()
	output, stdout := io.Pipe()
	c := child(env, "cat")
	c.Stdin, c.Stdout = stdin, stdout
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	echo := func(text string) {
		t.Helper()
		testkit.Within(t, "echo of "+text, func() {
			got := make([]byte, len(text))
			if _, err := io.ReadFull(output, got); err != nil || string(got) != text {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	if _, err := input.Write([]byte("first\n")); err != nil {
		t.Fatal(err)
	}
	echo("first\n")
	lost := p.lose()
	if _, err := input.Write([]byte("second\n")); err != nil {
		t.Fatal(err)
	}
	testkit.Within(t, "write", func() { <-lost })
	p.cut()
	echo("second\n")
	_ = input.Close()
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}

// So it is with the released server, as far as it retains what is missed: a
// mebibyte.
func TestCutsDuringCodexStream(t *testing.T) {
	t.Parallel()
	p := newProxy(t, testkit.ServeCommand(t, codexCommand(t, "ws://127.0.0.1:0")))
	env, err := client.Dial(background(t), p.url, nil)
	env = opened(t, env, err)
	const lines, cuts = 1000, 30
	p.cutEvery(lines*100/cuts, cuts)
	c := env.Command(background(t), "sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); sleep 0.002; done; exit 9", lines))
	var want, got bytes.Buffer
	for i := range lines {
		fmt.Fprintln(&want, "line", i)
	}
	c.Stdout = &got
	err = c.Run()
	if exit, ok := errors.AsType[*client.ExitError](err); !ok || exit.ExitCode != 9 {
		t.Errorf("Run: %v", err)
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("%d bytes, want %d", got.Len(), want.Len())
	}
	if n := p.cutCount(); n < cuts/2 {
		t.Errorf("only %d cuts", n)
	}
	t.Logf("%d cuts", p.cutCount())
}

// Whatever the link does, what is written to a process arrives, once and in
// order.
func TestCutsDuringWrites(t *testing.T) {
	t.Parallel()
	for name, serve := range listening {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, writes, cuts := cutScale()
			cutDuringWrites(t, serve(t, nil), writes, cuts, cuts*3/4)
		})
	}
	t.Run("codex", func(t *testing.T) { // which takes 40 ms for each
		t.Parallel()
		cutDuringWrites(t, testkit.ServeCommand(t, codexCommand(t, "ws://127.0.0.1:0")), 300, 30, 7)
	})
}

func cutDuringWrites(t *testing.T, url string, writes, cuts, atLeast int) {
	p := newProxy(t, url)
	env, err := client.Dial(background(t), p.url, nil)
	env = opened(t, env, err)
	c := child(env, "cat")
	stdin, stdout := startPiped(t, c)
	p.cutEvery(int64(writes/cuts)*100, cuts)
	var want bytes.Buffer
	// On a busy machine the answers of several writes share a message, and it takes more of
	// them for as many cuts.
	for i := 0; i < writes || p.cutCount() < atLeast; i++ {
		line := fmt.Sprintf("line %d\n", i)
		want.WriteString(line)
		if _, err := stdin.Write([]byte(line)); err != nil {
			t.Fatalf("write %d: %v", i, err)
		}
	}
	got := make([]byte, 0, want.Len())
	buf := make([]byte, 4096)
	for len(got) < want.Len() {
		n, err := stdout.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, buf[:n]...)
	}
	if err := c.Terminate(context.Background(), 0); err != nil {
		t.Error(err)
	}
	if err := c.Wait(); err == nil {
		t.Error("terminated, and no error")
	}
	rest := new(bytes.Buffer)
	_, _ = rest.ReadFrom(stdout)
	if got = append(got, rest.Bytes()...); !bytes.Equal(got, want.Bytes()) {
		t.Errorf("what came back is not what was written: %d and %d bytes", len(got), want.Len())
	}
	t.Logf("%d bytes, %d cuts", want.Len(), p.cutCount())
}
