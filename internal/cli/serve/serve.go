package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"execserver/internal/audit"
	"execserver/internal/auth"
	"execserver/internal/metrics"
	"execserver/internal/sandbox"
	"execserver/internal/sys"
	"execserver/internal/trusted"
	"execserver/internal/unixsocket"
	"execserver/internal/web"
	"execserver/server"
	"execserver/transport"
)

// ShutdownTimeout bounds how long the program waits at its end for clients to receive
// their last messages. The processes have ended before.
const ShutdownTimeout = 200 * time.Millisecond

// killTimeout bounds how long the program kills, at its end, the processes that its
// sessions left running. Only processes that cannot be killed make it wait so long.
const killTimeout = 2 * time.Second

// writeTimeout bounds how long the program waits at its end for files that it writes in
// place.
const writeTimeout = 30 * time.Second

// Fleet is what a server joins instead of listening.
type Fleet interface {
	// Machine returns the name of this machine in the fleet.
	Machine() string
	// Files returns the files that only the server may read.
	Files() []string
	// Join makes srv a machine of the fleet. It waits for the fleet until a signal tells the
	// program to end. drains receives a value when the fleet drains the machine, and ended the
	// error when it stops to be one. The caller calls leave after it has shut srv down.
	Join(srv *server.Server, log *slog.Logger, drains chan<- os.Signal, ended chan<- error) (leave func(), err error)
}

// adviceToMakeDirectory is for clients that name the directories of their own machine, as
// Codex does. Their users see it in the error of the server.
const adviceToMakeDirectory = "the directory is not on this machine: have the server make it with --workspace PATH, or show another one there with --workspace PATH=DIRECTORY"

// Main runs a program that serves. It makes it a helper of a server instead if it was
// started as one. The goroutine must be locked to the first thread of the program, as an
// init function of package main can do.
func Main(run func() int) {
	becomeHelper()
	go func() { os.Exit(run()) }()
	runFirstThread()
}

// serve runs the server until a signal, the end of stdio, or a failure; or it becomes the
// keeper of a server.
func serve(o Flags) error {
	log, err := o.NewLog(os.Stderr)
	if err != nil {
		return err
	}
	if err := o.showWorkspaces(log); err != nil {
		return err
	}
	if o.wantsKeeper() {
		log.Warn("the server has no keeper: if it is killed, its processes may keep running", "error", o.keep())
	}
	sockets, supervisor := HandedOver()
	if err := InheritNothing(); err != nil {
		return fmt.Errorf("keep the descriptors that the server was started with from its processes: %w", err)
	}
	return o.serve(log, sockets, supervisor)
}

// serve runs the server in this process. sockets are those that it inherited to listen on.
func (o *Flags) serve(log *slog.Logger, sockets int, supervisor supervisor) error {
	where, err := o.listenAddress(sockets)
	if err != nil {
		return err
	}
	authenticator, certificate, err := o.Prepare(where)
	if err != nil {
		return err
	}
	if o.Web && where.Kind != ListenWebSocket {
		return fmt.Errorf("--web requires a WebSocket listener, not %s", where.Kind)
	}
	scraped, err := o.openMetrics(authenticator)
	if err != nil {
		return err
	}
	ownership, err := own(o, log)
	if err != nil {
		return err
	}
	defer ownership.Close()
	audited, err := o.OpenAudit(log)
	if err != nil {
		return err
	}
	defer audited.Close()
	recorder, endRecordings, err := o.record.open(log)
	if err != nil {
		return err
	}
	defer endRecordings()
	if o.Sandbox != string(sandbox.ModeOff) {
		if err := sandbox.CheckSecrets(o.secrets(authenticator)); err != nil {
			return err
		}
	}
	engine := sandbox.New(&sandbox.Options{
		Log: log, Mode: sandbox.Mode(o.Sandbox), Hide: where.sockets(), Sockets: o.sandboxSockets,
		Secrets: func() []string { return o.secrets(authenticator) }, Trusted: func() []string { return o.trusted(authenticator) },
	})
	defer engine.Close()
	machine := ""
	if o.Fleet != nil {
		machine = o.Fleet.Machine()
	}
	options := &server.Options{
		Log:            log,
		Version:        o.Version,
		MaxConnections: max(server.DefaultMaxConnections, o.MaxSessions),
		Auth:           authenticator,
		Peers:          (*server.Peers)(&o.peers),
		Audit:          audited,
		Metrics:        metrics.Handler,

		NoDirectoryHint: adviceToMakeDirectory,

		Internal: server.Internal{Ownership: ownership, Sandbox: engine, Recorder: recorder, Machine: machine},
		Session: server.SessionOptions{
			DetachedTTL:        o.detachedTTL,
			MaxSessions:        o.MaxSessions,
			RetainedBytes:      o.retainedBytes,
			RetainedTotalBytes: o.retainedTotal,
			EvictDetached:      o.detachedOutput == "evict",
		},
	}
	o.ApplyDoors(options)
	if o.Web {
		options.Internal.Page = web.New()
	}
	srv := server.New(options)

	signals, hangups, drains := make(chan os.Signal, 1), make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(signals, Ending()...)
	notifyDrain(drains)
	signal.Notify(hangups, syscall.SIGHUP)
	IgnoreBrokenPipes()
	catchIgnored()                                            // the other ignored signals
	ended := make(chan error, 2+max(2, len(where.inherited))) // listeners, and two for metrics
	if where.Kind == listenFleet {
		leave, err := o.Fleet.Join(srv, log, drains, ended)
		if err != nil {
			return err
		}
		defer leave()
	} else if err := Start(srv, log, where, *o, ended); err != nil {
		return err
	}
	scraped.serve(srv, ended)
	reloading, stop := context.WithCancel(context.Background())
	defer stop()
	go Reload(reloading, log, srv, audited, hangups, supervisor, map[string]Refresher{
		"credentials": authenticator, "TLS certificate": certificate,
	})
	supervisor.Say("READY=1")
	err = untilEnd(srv, log, supervisor, signals, drains, ended)
	supervisor.Say("STOPPING=1")
	ctx, cancel := context.WithTimeout(context.Background(), ShutdownTimeout)
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
func (o *Flags) listenAddress(sockets int) (where Address, err error) {
	if o.Fleet != nil {
		return Address{Kind: listenFleet}, nil
	}
	where, err = ParseListen(o.Listen, o.TLSCert != "")
	if err == nil && where.Kind == listenInherited {
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
			supervisor.Say("STATUS=draining: no new sessions")
			drained = srv.Drain()
		case <-drained:
			log.Info("shutting down", "reason", "the last session has ended")
			return nil
		case err := <-ended:
			return err
		}
	}
}

// Prepare checks that the flags go together, and reads the files that decide who may
// connect.
func (o *Flags) Prepare(where Address) (*server.Authenticator, *trusted.Value[*tls.Certificate], error) {
	if where.Kind == listenUnix && o.mode != "" {
		return nil, nil, errors.New("websocket authentication does not apply to a unix socket, which only its owner can open")
	}
	if where.Kind != ListenWebSocket && o.TLSCert != "" {
		return nil, nil, fmt.Errorf("--tls-cert and --tls-key require a WebSocket listener, not %s", where.Kind)
	}
	if where.Kind != listenUnix && o.peers.Others() {
		return nil, nil, fmt.Errorf("--allow-uid and --allow-gid require a unix socket, not %s", where.Kind)
	}
	if o.peers.Others() && !auth.PeersKnown {
		return nil, nil, fmt.Errorf("--allow-uid and --allow-gid: %w", auth.ErrPeersUnknown)
	}
	authenticator, err := o.authenticator(where)
	if err != nil {
		return nil, nil, err
	}
	if err := where.CheckOpen(authenticator != server.Unauthenticated, o.insecureNoAuth); err != nil {
		return nil, nil, err
	}
	certificate, err := o.loadTLS(authenticator)
	return authenticator, certificate, err
}

// finishWrites waits for files that are being written in place, which would otherwise
// stay torn. Another signal ends the wait.
func finishWrites(srv *server.Server, log *slog.Logger) {
	ctx, stop := signal.NotifyContext(context.Background(), Ending()...)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := srv.FinishWrites(ctx); err != nil {
		log.Error("a write in place did not finish; the file has only a part of its new content", "error", err)
	}
}

// secrets returns the files that only the server may read.
func (o *Flags) secrets(authenticator *server.Authenticator) []string {
	secret, _ := authenticator.Files()
	files := Given(secret, o.TLSKey, o.record.dir)
	if o.AuditLog != audit.StandardError {
		files = append(Given(files, o.AuditLog), rotated(o.AuditLog)...)
	}
	if o.Fleet != nil {
		files = append(files, o.Fleet.Files()...)
	}
	return files
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
func (o *Flags) trusted(authenticator *server.Authenticator) []string {
	_, public := authenticator.Files()
	return Given(public, o.TLSCert, o.config)
}

// Given appends the files whose names are not empty.
func Given(to []string, files ...string) []string {
	for _, file := range files {
		if file != "" {
			to = append(to, file)
		}
	}
	return to
}

// Start begins to serve. ended receives the error when serving ends by itself.
func Start(srv *server.Server, log *slog.Logger, where Address, o Flags, ended chan<- error) error {
	switch where.Kind {
	case ListenStdio:
		in := interruptible(os.Stdin)
		sys.EnlargePipe(in)
		sys.EnlargePipe(os.Stdout)
		end := func() error { return errors.Join(in.Close(), os.Stdout.Close()) }
		conn := transport.NewLines("stdio", in, os.Stdout, end, transport.DefaultMaxMessageBytes)
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
		o.Banner(log, "unix://"+where.address)
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
	o.Banner(log, url)
	for _, listener := range listeners {
		if o.tls != nil {
			listener = tls.NewListener(listener, o.tls)
		}
		go func() { ended <- srv.ServeWebSocket(listener) }()
	}
	return nil
}

// Banner tells launchers where the server listens: newer ones read the URL from stdout,
// and the oldest look for it in a sentence on stderr.
func (o *Flags) Banner(log *slog.Logger, url string) {
	if _, err := fmt.Println(url); err != nil {
		// The launcher may have closed it.
		log.Warn("cannot write the server's URL to standard output", "url", url, "error", err)
	}
	o.Say("exec-server listening on " + url)
}
