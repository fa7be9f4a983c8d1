package client

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"execserver/internal/loginshell"
	"execserver/process"
	"execserver/protocol"
	"execserver/session"
)

// Local makes an Environment of this process: commands are its children, with
// the same rules as a server's, and nothing is encoded. Options about
// connections do not matter.
func Local(opts *Options) (*Environment, error) {
	e := newEnvironment(opts.withDefaults())
	h := &host{env: e, wake: make(chan struct{}, 1), closing: make(chan struct{}), machine: localInfo()}
	h.os = h.machine.OS
	h.http = &http.Transport{Proxy: http.ProxyFromEnvironment, DisableCompression: true}
	h.sessions = session.New(&session.Options{Log: e.opts.Log})
	var err error
	if h.session, h.outbox, err = h.sessions.Create(h); err != nil {
		return nil, err
	}
	e.back, e.acks = h, true
	h.wg.Go(h.deliver)
	return e, nil
}

// host is the backend that is this process itself: it calls the session as the
// server does, and is the session's peer.
type host struct {
	localFiles
	env      *Environment
	sessions *session.Sessions
	session  *session.Session
	outbox   *session.Outbox
	machine  *Info
	http     *http.Transport
	wake     chan struct{}
	closing  chan struct{}
	wg       sync.WaitGroup // deliver
}

// localCapabilities are what a server announces that a session can do.
func localCapabilities() map[string]bool {
	return map[string]bool{
		capCloseStdin:        true,
		capDrain:             true,
		capLimits:            true,
		capResize:            process.Terminals,
		capSignals:           process.Signals,
		capTerminateGraceful: process.Signals,
		capFileWriting:       true,
	}
}

func localInfo() *Info {
	i := &Info{OS: protocol.OSName(runtime.GOOS), Capabilities: localCapabilities()}
	var err error
	i.Dir, err = os.Getwd()
	i.dirGone = err != nil
	if dir, err := os.UserHomeDir(); err == nil && filepath.IsAbs(dir) {
		i.HomeDir = dir
	}
	if dir := os.TempDir(); filepath.IsAbs(dir) {
		i.TempDir = dir
	}
	shell := loginshell.Get()
	i.Shell, i.ShellPath = shell.Name, shell.Path
	return i
}

// Credentials implements session.Peer.
func (h *host) Credentials() session.Credentials { return session.Credentials{} }

// Asks implements session.Peer.
func (h *host) Asks() protocol.ClientCapabilities {
	return protocol.ClientCapabilities{ProcessAck: true}
}

// Wake implements session.Peer.
func (h *host) Wake() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// WantAck implements session.Peer: who waits for output acknowledges in time.
func (h *host) WantAck() {}

// Probe implements session.Peer.
func (h *host) Probe() bool { return true }

// TakenOver implements session.Peer; nobody else knows the session.
func (h *host) TakenOver(string, bool) {}

// Left implements session.Peer, for observers.
func (h *host) Left(string) {}

// deliver passes events on until the host is closed.
func (h *host) deliver() {
	for {
		select {
		case <-h.wake:
		case <-h.closing:
			return
		}
		for id, event, ok := h.outbox.Next(); ok; id, event, ok = h.outbox.Next() {
			if p := h.env.process(id); p != nil {
				p.insert(localEvent(event))
			} else {
				h.ack(id, event.Seq) // its start was abandoned
			}
		}
	}
}

func localEvent(e process.Event) Event {
	switch e.Kind {
	case process.Output:
		return Event{Kind: Output, Seq: e.Seq, Stream: e.Output.Stream, Data: e.Output.Data}
	case process.Exited:
		return Event{Kind: Exited, Seq: e.Seq, Exit: localExit(e.Exit)}
	default:
		return Event{Kind: Closed, Seq: e.Seq}
	}
}

func localExit(r protocol.ExitRecord) *Exit { return &Exit{ExitRecord: r} }

func (h *host) info() *Info { return h.machine }

func (h *host) start(_ context.Context, p *Process, s *startRequest) error {
	spec := process.Spec{
		Argv: s.Argv, Arg0: s.Arg0, Dir: s.dir, TTY: s.TTY, PipeStdin: s.PipeStdin, DropOutput: s.drop, Limits: s.limits, Drain: s.Drain,
	}
	spec.Env = process.Environment(process.ServerEnvironment(), s.EnvPolicy, s.Env)
	if s.TTY {
		spec.Size = *s.Size
		loginshell.Default(spec.Env)
	}
	if err := h.session.Start(p.ID, spec); err != nil {
		return h.startError(s.dir, h.explain(err))
	}
	h.session.Announce(p.ID)
	return nil
}

func (h *host) explain(err error) error { return explain(err, h.machine.OS) }

// startError tells a program that does not exist from a directory.
func (h *host) startError(dir string, err error) error {
	if !isNotExist(err) {
		return err
	}
	if _, statErr := os.Stat(dir); statErr != nil {
		return fmt.Errorf("directory %s: %w", dir, err)
	}
	return notFound{err}
}

func (h *host) read(ctx context.Context, id string, after, maxBytes uint64) (*readResult, error) {
	p := protocol.Read{ProcessID: id, AfterSeq: &after, MaxBytes: &maxBytes}
	r, err := h.session.Read(ctx, p, 0, func(int) error { return nil })
	if err != nil {
		return nil, err
	}
	result := &readResult{ReadResult: *r}
	if r.Exit != nil {
		result.exit = localExit(*r.Exit)
	}
	return result, nil
}

func (h *host) write(ctx context.Context, id string, data []byte, writeID string) (protocol.WriteStatus, error) {
	p := protocol.Write{ProcessID: id, Chunk: data, WriteID: &writeID}
	status, cancelled := h.session.Write(p, ctx.Done(), func(wait func()) { wait() })
	if cancelled {
		return "", context.Cause(ctx)
	}
	return status, nil
}

func (h *host) closeStdin(_ context.Context, id string) error {
	return h.explain(h.session.CloseStdin(id))
}

func (h *host) resize(_ context.Context, id string, size Size) error {
	return h.explain(h.session.Resize(protocol.Resize{ProcessID: id, Size: size}))
}

func (h *host) signal(_ context.Context, s protocol.Signal) error {
	return h.explain(h.session.Signal(s))
}

func (h *host) terminate(_ context.Context, id string, grace time.Duration) error {
	if grace > 0 {
		h.session.TerminateGracefully(id, grace)
	} else {
		h.session.Terminate(id)
	}
	return nil
}

func (h *host) ack(id string, seq uint64) { h.outbox.Ack(protocol.Ack{ProcessID: id, Seq: seq}) }

func (h *host) roundTrip(r *http.Request) (*http.Response, error) { return h.http.RoundTrip(r) }

func (h *host) shut() {
	h.handles.Close()
	h.http.CloseIdleConnections()
	h.sessions.Close("environment closed")
	h.sessions.Wait()
	close(h.closing)
	h.wg.Wait()
}
