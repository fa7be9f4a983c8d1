//go:build linux && faults

package faults

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/protocol"
)

// scenario is something that a client does. run calls arm where the faults begin. It
// returns a *violation, or the refusal of a request, which must be due to the fault.
type scenario struct {
	name string
	run  func(d *driver, arm func()) error
	cuts bool // it cuts the connection itself
}

var scenarios = []scenario{
	{name: "pipes", run: func(d *driver, arm func()) error {
		arm()
		p, err := d.start("printf out; printf err >&2; exit 7")
		if err != nil {
			return err
		}
		if err := p.ended("code 7"); err != nil {
			return err
		}
		if got := p.text(); got != "outerr" && got != "errout" {
			return violated("the output is %q", got)
		}
		return nil
	}},
	{name: "terminal", run: func(d *driver, arm func()) error {
		arm()
		p, err := d.start("printf out; exit 7", tty)
		if err != nil {
			return err
		}
		if err := p.ended("code 7"); err != nil {
			return err
		}
		if got := p.text(); got != "out" {
			return violated("the output is %q", got)
		}
		return nil
	}},
	{name: "write", run: func(d *driver, arm func()) error {
		p, err := d.start("cat", stdin)
		if err != nil {
			return err
		}
		arm()
		if err := p.write("hello\n"); err != nil {
			return err
		}
		if err := d.call(protocol.MethodCloseStdin, protocol.CloseStdinParams{ProcessID: p.ID}, nil); err != nil {
			return err
		}
		if err := p.ended("code 0"); err != nil {
			return err
		}
		if got := p.text(); got != "hello\n" {
			return violated("the output is %q", got)
		}
		return nil
	}},
	{name: "large write", run: func(d *driver, arm func()) error {
		p, err := d.start("sleep 0.02; cat", stdin)
		if err != nil {
			return err
		}
		data := strings.Repeat("0123456789abcde\n", 20_000)
		arm()
		if err := p.write(data); err != nil {
			return err
		}
		if err := d.call(protocol.MethodCloseStdin, protocol.CloseStdinParams{ProcessID: p.ID}, nil); err != nil {
			return err
		}
		if err := p.ended("code 0"); err != nil {
			return err
		}
		if got := p.text(); got != data {
			return violated("%d bytes of output, want %d", len(got), len(data))
		}
		return nil
	}},
	{name: "resize", run: func(d *driver, arm func()) error {
		p, err := d.start("stty -echo; printf ready; read line; stty size", tty)
		if err != nil {
			return err
		}
		if err := p.shows("ready"); err != nil {
			return err
		}
		arm()
		if err := d.call(protocol.MethodResize, protocol.ResizeParams{ProcessID: p.ID, Size: protocol.TerminalSize{Rows: 33, Cols: 44}}, nil); err != nil {
			return err
		}
		if err := p.write("\n"); err != nil {
			return err
		}
		if err := p.ended("code 0"); err != nil {
			return err
		}
		if got := p.text(); got != "ready33 44\r\n" {
			return violated("the output is %q", got)
		}
		return nil
	}},
	{name: "signal", run: func(d *driver, arm func()) error {
		p, err := d.start("exec sleep 1000")
		if err != nil {
			return err
		}
		arm()
		if err := d.call(protocol.MethodSignal, protocol.SignalParams{ProcessID: p.ID, Signal: "SIGUSR1"}, nil); err != nil {
			return err
		}
		return p.ended("SIGUSR1 by client", "SIGUSR1 by self")
	}},
	{name: "terminate", run: func(d *driver, arm func()) error {
		p, err := d.start(d.family())
		if err != nil {
			return err
		}
		if err := p.shows("ready"); err != nil {
			return err
		}
		arm()
		if err := d.call(protocol.MethodTerminate, protocol.TerminateParams{ProcessID: p.ID}, nil); err != nil {
			return err
		}
		if err := p.ended("SIGKILL by client"); err != nil {
			return err
		}
		return d.nothingRuns()
	}},
	{name: "graceful", run: func(d *driver, arm func()) error {
		p, err := d.start("trap 'printf bye; exit 3' TERM; sleep 1000 & printf ready; wait; exec sleep 1000")
		if err != nil {
			return err
		}
		if err := p.shows("ready"); err != nil {
			return err
		}
		arm()
		grace := uint64(1000)
		if err := d.call(protocol.MethodTerminate, protocol.TerminateParams{ProcessID: p.ID, Mode: protocol.TerminateGraceful, TimeoutMs: &grace}, nil); err != nil {
			return err
		}
		if err := p.ended("code 3", "SIGKILL by client"); err != nil { // the latter when SIGTERM failed
			return err
		}
		return d.nothingRuns()
	}},
	{name: "ending", run: func(d *driver, arm func()) error {
		p, err := d.start("read line; sleep 0.05 >/dev/null 2>&1 </dev/null & printf $line; kill -SEGV $$", stdin)
		if err != nil {
			return err
		}
		arm()
		if err := p.write("word\n"); err != nil {
			return err
		}
		if err := p.ended("SIGSEGV by self"); err != nil {
			return err
		}
		if got := p.text(); got != "word" && got != "" { // the shell may be killed before it writes
			return violated("the output is %q", got)
		}
		return nil
	}},
	{name: "resume", cuts: true, run: func(d *driver, arm func()) error {
		p, err := d.start("printf ready; read line; i=0; while [ $i -lt 300 ]; do echo $i; i=$((i+1)); done; exit 5", stdin)
		if err != nil {
			return err
		}
		if err := p.shows("ready"); err != nil {
			return err
		}
		arm()
		if err := p.write("\n"); err != nil {
			return err
		}
		d.session.Cut()
		if err := p.ended("code 5"); err != nil {
			return err
		}
		if got := p.text(); strings.Count(got, "\n") != 300 || !strings.HasSuffix(got, "\n299\n") {
			return violated("the output ends with %q", got[max(0, len(got)-40):])
		}
		return nil
	}},
	{name: "session end", cuts: true, run: func(d *driver, arm func()) error {
		ctx, cancel := context.WithTimeout(d.ctx, testkit.Patience)
		defer cancel()
		conn, err := testclient.Dial(ctx, d.brief, testclient.Options{})
		if err != nil {
			return err
		}
		defer conn.Drop()
		err = conn.Call(ctx, protocol.MethodStart, protocol.StartParams{
			ProcessID: "a", Argv: []string{"/bin/sh", "-c", d.family()}, Cwd: protocol.URIPath(d.dir),
			Env: map[string]string{"PATH": os.Getenv("PATH"), markVariable: d.mark},
		}, nil)
		if err != nil {
			return err
		}
		arm()
		conn.Drop()
		return d.nothingRuns()
	}},
	{name: "connection", cuts: true, run: func(d *driver, arm func()) error {
		ctx, cancel := context.WithTimeout(d.ctx, testkit.Patience)
		defer cancel()
		arm()
		for { // until the fault is over
			conn, err := testclient.Dial(ctx, d.brief, testclient.Options{})
			if err == nil {
				err = conn.Call(ctx, protocol.MethodEnvironmentInfo, nil, nil)
				conn.Drop()
			}
			if err == nil {
				return nil
			}
			if ctx.Err() != nil {
				return violated("nobody can connect: %v", err)
			}
			if refused := (*protocol.Error)(nil); errors.As(err, &refused) {
				return err
			}
			time.Sleep(time.Millisecond)
		}
	}},
	{name: "files", run: func(d *driver, arm func()) error {
		path := filepath.Join(d.dir, "file")
		if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
			return err
		}
		file := protocol.URIPath(path)
		arm()
		writeErr := d.call("fs/writeFile", map[string]any{"path": file, "dataBase64": []byte("new")}, nil)
		var violation *violation
		if errors.As(writeErr, &violation) {
			return writeErr
		}
		got, err := os.ReadFile(path)
		if text := string(got); err != nil || text != "new" && (text != "old" || writeErr == nil) {
			return violated("the file has %q, %v, when its write returned %v", got, err, writeErr)
		}
		if names, _ := os.ReadDir(d.dir); len(names) != 1 {
			return violated("there are %v", names)
		}
		for _, step := range []struct {
			method string
			params map[string]any
		}{
			{"fs/readFile", map[string]any{"path": file}},
			{"fs/copy", map[string]any{"sourcePath": file, "destinationPath": protocol.URIPath(path + "2"), "recursive": false}},
			{"fs/readDirectory", map[string]any{"path": protocol.URIPath(d.dir)}},
			{"fs/remove", map[string]any{"path": protocol.URIPath(path + "2"), "recursive": true, "force": true}},
			{"fs/remove", map[string]any{"path": file, "recursive": false, "force": true}},
		} {
			if err := d.call(step.method, step.params, nil); errors.As(err, &violation) {
				return err
			}
		}
		_ = os.Remove(path)
		_ = os.Remove(path + "2")
		if writeErr != nil {
			return writeErr
		}
		return nil
	}},
}

// family returns a command with a child, and with a daemon if the ownership finds daemons.
// The command does not end by itself if its child is killed first, which may happen where
// their group cannot be killed as one.
func (d *driver) family() string {
	const family = "sleep 1000 & printf ready; wait; exec sleep 1000"
	if d.owner == nil {
		return family
	}
	return "setsid sleep 1000 >/dev/null 2>&1 </dev/null & " + family
}

// nothingRuns waits until all processes of the test have ended.
func (d *driver) nothingRuns() error {
	deadline := time.Now().Add(slow)
	for {
		left := testkit.WithVariable(d.t, markVariable, d.mark)
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return violated("what was ended still runs: %s", strings.Join(left, ", "))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// shows waits until the output of a process contains text.
func (p *proc) shows(text string) error {
	deadline := time.Now().Add(testkit.Patience)
	for !strings.Contains(p.text(), text) {
		if time.Now().After(deadline) {
			return violated("no %q in %q", text, p.text())
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}
