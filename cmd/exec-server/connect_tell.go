package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"execserver/internal/bootstrap"
	"execserver/internal/cli"
	"execserver/protocol"
)

// uploadNotice tells a person on standard error that the program is being copied: on a
// terminal in a line that counts, otherwise once.
type uploadNotice struct {
	to    string
	told  bool
	drawn time.Time
	shown bool
}

// show is a bootstrap.Options.Progress.
func (u *uploadNotice) show(kind bootstrap.Kind, sent, all int64) {
	text := fmt.Sprintf("copying exec-server for %s (%s) by %s", kind, size(all), cli.Printable(u.to))
	if _, ok := cli.OnTerminal(os.Stderr); !ok {
		if !u.told {
			fmt.Fprintln(os.Stderr, text)
		}
		u.told = true
		return
	}
	if sent < all && time.Since(u.drawn) < meterPause {
		return
	}
	u.drawn, u.shown = time.Now(), true
	fmt.Fprintf(os.Stderr, "\r%s: %d%%\x1b[K", text, 100*sent/max(1, all))
}

// clear ends the line.
func (u *uploadNotice) clear() {
	if u.shown {
		fmt.Fprintln(os.Stderr)
	}
}

// initializeProgress returns a function that tells a client that has asked how far the copy is: it
// waits for the answer to initialize meanwhile (PROTOCOL.md, "Handshake").
func initializeProgress(asked *atomic.Bool, client io.Writer) func(arrived, size int64) {
	return func(arrived, size int64) {
		if !asked.Load() {
			return
		}
		params := protocol.InitializeProgressParams{Bytes: uint64(arrived), Total: uint64(size)}
		line, err := json.Marshal(map[string]any{"method": protocol.NotificationInitializeProgress, "params": params})
		if err == nil {
			_, _ = client.Write(append(line, '\n')) // if the client is gone, what follows fails as well
		}
	}
}

// stderrOfOthers is where ssh, and through it the other machine, may write what is for
// people. A terminal gets no control characters.
func stderrOfOthers() io.Writer {
	if _, ok := cli.OnTerminal(os.Stderr); ok {
		return &printableWriter{out: os.Stderr}
	}
	return os.Stderr
}

// printableWriter writes lines without what controls a terminal. It keeps an incomplete
// line until it is complete or long.
type printableWriter struct {
	out  io.Writer
	line []byte
}

// maxLine bounds what printableWriter keeps.
const maxLine = 4 << 10

// Write implements io.Writer.
func (w *printableWriter) Write(b []byte) (int, error) {
	w.line = append(w.line, b...)
	for len(w.line) > 0 {
		line, rest, whole := bytes.Cut(w.line, []byte("\n"))
		if !whole && len(line) < maxLine {
			break
		}
		if _, err := fmt.Fprintln(w.out, cli.Printable(string(bytes.TrimRight(line, "\r")))); err != nil {
			return 0, err
		}
		w.line = rest
	}
	return len(b), nil
}
