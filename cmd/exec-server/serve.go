package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"execserver/internal/auth"
	"execserver/internal/pipe"
	"execserver/internal/sandbox"
	"execserver/internal/trusted"
	"execserver/internal/unixsocket"
	"execserver/server"
	"execserver/transport"
)

// shutdownTimeout bounds how long the program waits at its end for clients to receive
// their last messages. The processes have ended before.
const shutdownTimeout = 200 * time.Millisecond

// killTimeout bounds how long the program kills, at its end, the processes that its
// sessions left running. Only processes that cannot be killed make it wait so long.
const killTimeout = 2 * time.Second

// writeTimeout bounds how long the program waits at its end for files that it writes in
// place.
const writeTimeout = 30 * time.Second

// serve runs the server until a signal, the end of stdio, or a failure; or it becomes the
// keeper of a server.
func serve(o options) error {
	log, err := o.newLog(os.Stderr)
	if err != nil {
		return err
	}
	if err := o.showWorkspaces(log); err != nil {
		return err
	}
	if o.wantsKeeper() {
		err := o.keep()
		if o.keeper == "on" {
			return err
		}
		log.Warn("the server has no keeper: if it is killed, its processes may keep running", "error", err)
	}
	sockets, supervisor := handedOver()
	if err := inheritNothing(); err != nil {
		return fmt.Errorf("keep the descriptors that the server was started with from its processes: %w", err)
	}
	return o.serve(log, sockets, supervisor)
}

// serve runs the server in this process. sockets are those that it inherited to listen on.
func (o *options) serve(log *slog.Logger, sockets int, supervisor supervisor) error {
	where, err := o.listenAddress(sockets)
	if err != nil {
		return err
	}
	authenticator, certificate, err := o.prepare(where)
	if err != nil {
		return err
	}
	if err := o.web.check(where); err != nil {
		return err
	}
	metrics, err := o.metrics.openMetrics(o, where, authenticator)
	if err != nil {
		return err
	}
	ownership, err := own(o, log)
	if err != nil {
		return err
	}
	defer ownership.Close()
	audited, err := o.openAudit(log)
	if err != nil {
		return err
	}
	defer audited.Close()
	recorder, endRecordings, err := o.record.open(log)
	if err != nil {
		return err
	}
	defer endRecordings()
	engine := sandbox.New(&sandbox.Options{
		Log: log, Mode: sandbox.Mode(o.sandbox), Hide: where.sockets(), Sockets: o.sandboxSockets,
		Secrets: func() []string { return o.secrets(authenticator) }, Trusted: func() []string { return o.trusted(authenticator) },
	})
	defer engine.Close()
	options := &server.Options{
		Log:              log,
		Version:          buildVersion(),
		MaxMessageBytes:  o.maxMessageBytes,
		MaxConnections:   o.maxConnections,
		MaxHTTPBodyBytes: o.maxHTTPBodyBytes,
		DurableWrites:    o.durableWrites,
		Auth:             authenticator,
		Peers:            (*server.Peers)(&o.peers),
		Audit:            audited,

		AllowDirectExec:   o.allowDirect,
		AllowPreparedExec: o.allowPrepared,

		AllowKeepDescendants: o.keepDescendants,

		NoDirectoryHint: adviceToMakeDirectory,

		Internal: server.Internal{Ownership: ownership, Sandbox: engine, Recorder: recorder, Machine: o.fleet.machine()},
		Session: server.SessionOptions{
			DrainTimeout:       o.drainTimeout,
			DetachedTTL:        o.detachedTTL,
			SilentTTL:          o.silentTTL,
			MaxKeep:            o.maxKeep,
			MaxSessions:        o.maxSessions,
			MaxProcesses:       o.maxProcesses,
			MaxObservers:       o.maxObservers,
			RetainedBytes:      o.retainedBytes,
			RetainedTotalBytes: o.retainedTotal,
			EvictDetached:      o.detachedOutput == "evict",
		},
	}
	o.doors.apply(options)
	o.metrics.apply(options)
	o.web.apply(options)
	endTraces, err := traceRequests(options, log)
	if err != nil {
		return err
	}
	defer endTraces()
	srv := server.New(options)

	signals, hangups, drains := make(chan os.Signal, 1), make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(signals, ending()...)
	notifyDrain(drains)
	signal.Notify(hangups, syscall.SIGHUP)
	ignoreBrokenPipes()
	catchIgnored()                                            // the other ignored signals
	ended := make(chan error, 3+max(2, len(where.inherited))) // listeners, two for metrics, and standard input
	if where.kind == listenFleet {
		leave, err := o.fleet.join(srv, log, o, drains, ended)
		if err != nil {
			return err
		}
		defer leave()
	} else if err := start(srv, log, where, *o, ended); err != nil {
		return err
	}
	metrics.serve(srv, ended)
	if o.exitOnStdinClose && where.kind != listenStdio {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			log.Info("standard input ended")
			ended <- nil
		}()
	}
	reloading, stop := context.WithCancel(context.Background())
	defer stop()
	go reload(reloading, log, srv, audited, hangups, supervisor, map[string]refresher{
		"credentials": authenticator, "TLS certificate": certificate,
	})
	supervisor.say("READY=1")
	err = untilEnd(srv, log, supervisor, signals, drains, ended)
	supervisor.say("STOPPING=1")
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if timeout := srv.Shutdown(ctx); timeout != nil {
		log.Info("shutdown did not finish in time", "error", timeout)
	}
	finishWrites(srv, log)
	engine.Close()
	ownership.KillAll(killTimeout)
	return err
}

// listenAddress returns where to listen. sockets are those that the program inherited.
func (o *options) listenAddress(sockets int) (where listenAddress, err error) {
	if o.fleet.joins() {
		return listenAddress{kind: listenFleet}, nil
	}
	where, err = parseListen(o.listen, o.tlsCert != "")
	if err == nil && where.kind == listenInherited {
		where, err = inheritedAddress(sockets)
	}
	return where, err
}

// untilEnd waits until a signal or the end of the last session ends a server, or it ends
// by itself.
func untilEnd(srv *server.Server, log *slog.Logger, supervisor supervisor, signals, drains <-chan os.Signal, ended <-chan error) error {
	var drained <-chan struct{}
	for {
		select {
		case received := <-signals:
			log.Info("shutting down", "signal", received.String())
			return nil
		case <-drains:
			log.Warn("draining: there will be no new sessions, and the server ends with its last one")
			supervisor.say("STATUS=draining: no new sessions")
			drained = srv.Drain()
		case <-drained:
			log.Info("shutting down", "reason", "the last session has ended")
			return nil
		case err := <-ended:
			return err
		}
	}
}

// prepare checks that the flags go together, and reads the files that decide who may
// connect.
func (o *options) prepare(where listenAddress) (*server.Authenticator, *trusted.Value[*tls.Certificate], error) {
	if where.kind == listenUnix && o.auth.mode != "" {
		return nil, nil, errors.New("websocket authentication does not apply to a unix socket, which only its owner can open")
	}
	if where.kind != listenWebSocket && o.tlsCert != "" {
		return nil, nil, fmt.Errorf("--tls-cert and --tls-key require a WebSocket listener, not %s", where.kind)
	}
	if where.kind != listenUnix && o.peers.Others() {
		return nil, nil, fmt.Errorf("--allow-uid and --allow-gid require a unix socket, not %s", where.kind)
	}
	if o.peers.Others() && !auth.PeersKnown {
		return nil, nil, fmt.Errorf("--allow-uid and --allow-gid: %w", auth.ErrPeersUnknown)
	}
	authenticator, err := o.auth.authenticator(where)
	if err != nil {
		return nil, nil, err
	}
	if err := where.checkOpen(authenticator != server.Unauthenticated, o.insecureNoAuth); err != nil {
		return nil, nil, err
	}
	certificate, err := o.loadTLS(authenticator)
	return authenticator, certificate, err
}

// finishWrites waits for files that are being written in place, which would otherwise
// stay torn. Another signal ends the wait.
func finishWrites(srv *server.Server, log *slog.Logger) {
	ctx, stop := signal.NotifyContext(context.Background(), ending()...)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := srv.FinishWrites(ctx); err != nil {
		log.Error("a write in place did not finish; the file has only a part of its new content", "error", err)
	}
}

// secrets returns the files that only the server may read.
func (o *options) secrets(authenticator *server.Authenticator) []string {
	secret, _ := authenticator.Files()
	files := append(given(secret, o.tlsKey, o.auditLog, o.record.dir), rotated(o.auditLog)...)
	return append(files, o.fleet.files()...)
}

// maxRotated bounds the number of older audit logs that sandboxes hide, because a command
// that may write in their directory can create files with such names.
const maxRotated = 64

// rotated returns the older files of an audit log, by the names that programs for
// rotating logs give them, such as audit.log.1 and audit.log-20261123.gz.
func rotated(log string) (files []string) {
	if log == "" {
		return nil
	}
	entries, _ := os.ReadDir(filepath.Dir(log)) // without the directory there is no log either
	for _, entry := range entries {
		rest, ok := strings.CutPrefix(entry.Name(), filepath.Base(log))
		if ok && rest != "" && strings.ContainsRune(".-", rune(rest[0])) && entry.Type().IsRegular() && len(files) < maxRotated {
			files = append(files, filepath.Join(filepath.Dir(log), entry.Name()))
		}
	}
	return files
}

// trusted returns the other files that decide who may connect.
func (o *options) trusted(authenticator *server.Authenticator) []string {
	_, public := authenticator.Files()
	return given(public, o.tlsCert, o.config)
}

// given appends the files whose names are not empty.
func given(to []string, files ...string) []string {
	for _, file := range files {
		if file != "" {
			to = append(to, file)
		}
	}
	return to
}

// start begins to serve. ended receives the error when serving ends by itself.
func start(srv *server.Server, log *slog.Logger, where listenAddress, o options, ended chan<- error) error {
	switch where.kind {
	case listenStdio:
		in := interruptible(os.Stdin)
		pipe.Enlarge(in)
		pipe.Enlarge(os.Stdout)
		end := func() error { return errors.Join(in.Close(), os.Stdout.Close()) }
		conn := transport.NewLines("stdio", in, os.Stdout, end, o.maxMessageBytes)
		go func() {
			_ = srv.ServeOnly(conn) // the log says why; a client that leaves is no failure
			ended <- nil
		}()
		return nil
	case listenUnix:
		listen := unixsocket.Listen
		if o.peers.Others() {
			listen = unixsocket.ListenForAll
		}
		listeners := where.inherited
		if listeners == nil {
			listener, err := listen(where.address)
			if err != nil {
				return err
			}
			listeners = []net.Listener{listener}
		}
		banner(log, "unix://"+where.address)
		for _, listener := range listeners {
			go func() { ended <- srv.ServeUnix(listener) }()
		}
		return nil
	}
	listeners, shown, err := where.open()
	if err != nil {
		return err
	}
	url := "ws://" + shown
	if o.tls != nil {
		url = "wss://" + shown
	}
	banner(log, url)
	for _, listener := range listeners {
		if o.tls != nil {
			listener = tls.NewListener(listener, o.tls)
		}
		go func() { ended <- srv.ServeWebSocket(listener) }()
	}
	return nil
}

// banner tells launchers where the server listens: newer ones read the URL from stdout,
// and the oldest look for it in a sentence on stderr.
func banner(log *slog.Logger, url string) {
	if _, err := fmt.Println(url); err != nil {
		// The launcher may have closed it.
		log.Warn("cannot write the server's URL to standard output", "url", url, "error", err)
	}
	fmt.Fprintln(os.Stderr, "exec-server listening on "+url)
}
