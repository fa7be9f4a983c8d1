package connect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"execserver/internal/cli"
	"execserver/internal/cli/connect/bootstrap"
	"execserver/protocol"
)

// uploadNotice reports the upload of the program on standard error: on a terminal in a line with
// the progress, otherwise once.
type uploadNotice struct {
	to        string
	announced bool
	drawn     time.Time
	shown     bool
}

// redrawInterval is the time between two updates of the line.
const redrawInterval = 200 * time.Millisecond

// show is a bootstrap.Options.Progress.
func (u *uploadNotice) show(kind bootstrap.Kind, sent, all int64) {
	text := fmt.Sprintf("copying exec-server for %s (%s) by %s", kind, cli.FormatSize(all), cli.Printable(u.to))
	if _, ok := cli.OnTerminal(os.Stderr); !ok {
		if !u.announced {
			fmt.Fprintln(os.Stderr, text)
		}
		u.announced = true
		return
	}
	if sent < all && time.Since(u.drawn) < redrawInterval {
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

// initializeProgress returns a function that reports the progress of the upload to a client that
// has sent its first request. The client waits for the answer to initialize (PROTOCOL.md,
// "Handshake").
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

// remoteStderr returns the destination for the standard error of ssh and of the other machine.
// Without control characters, if it is a terminal.
func remoteStderr() io.Writer {
	if _, ok := cli.OnTerminal(os.Stderr); ok {
		return &printableWriter{out: os.Stderr}
	}
	return os.Stderr
}

// printableWriter writes lines without control characters. It keeps an incomplete line until the
// line is complete or long.
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
