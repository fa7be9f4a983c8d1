package serve

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
	"sync"
	"syscall"
	"time"

	"execserver/internal/audit"
	"execserver/internal/auth"
	"execserver/internal/cli"
	"execserver/internal/cli/connect/relay"
	"execserver/internal/extension"
	"execserver/internal/metrics"
	"execserver/internal/sandbox"
	"execserver/internal/sys"
	"execserver/internal/web"
	"execserver/server"
	"execserver/transport"
)

// ShutdownTimeout bounds the wait at the end for clients to receive their last messages. The
// processes have ended by then.
const ShutdownTimeout = 200 * time.Millisecond

// killTimeout bounds the kill loop at the end for processes that remain. Only unkillable
// processes exhaust it.
const killTimeout = 2 * time.Second

// writeTimeout bounds the wait at the end for writes in place.
const writeTimeout = 30 * time.Second

// Fleet is joined by a server instead of listening.
type Fleet interface {
	// Machine returns the name of this machine in the fleet.
	Machine() string
	// Files returns the files that only the server may read.
	Files() []string
	// Join makes srv a machine of the fleet. It waits for the fleet until a signal ends the
	// program. drains receives a value when the fleet drains the machine, and ended the error
	// when the machine leaves the fleet. The caller calls leave after srv.Shutdown.
	Join(srv *server.Server, log *slog.Logger, drains chan<- os.Signal, ended chan<- error) (leave func(), err error)
}

// adviceToMakeDirectory is part of the error for a missing directory. Clients such as Codex name
// directories of their own machine.
const adviceToMakeDirectory = "the directory is not on this machine: have the server make it with --workspace PATH, or show another one there with --workspace PATH=DIRECTORY"

// Main is the main function of every command, also of those that do not serve: the program may have
// been started as the helper of a server, and its first thread must start no process. run is the
// command line. The goroutine must be locked to the first thread of the program, by an init function of package
// main.
func Main(run func() int) {
	becomeHelper()
	go func() { os.Exit(run()) }()
	runFirstThread()
}

// serve runs the server until a signal, the end of stdio, or a failure. It may become the
// supervisor of a server instead.
func serve(o Flags) error {
	var stderr io.Writer = os.Stderr
	if o.runDirectory != "" {
		stderr = &boundedLog{file: os.Stderr}
	}
	log, err := o.NewLog(stderr)
	if err != nil {
		return err
	}
	if err := o.showWorkspaces(log); err != nil {
		return err
	}
	if o.wantsSupervisor() {
		log.Warn("the server has no supervisor: if it is killed, its processes may keep running", "error", o.keep())
	}
	sockets, manager := HandedOver()
	if err := InheritNothing(); err != nil {
		return fmt.Errorf("keep the descriptors that the server was started with from its processes: %w", err)
	}
	return o.serve(log, sockets, manager)
}

// serve runs the server in this process. sockets is the number of inherited sockets.
func (o *Flags) serve(log *slog.Logger, sockets int, manager serviceManager) error {
	addr, err := o.listenAddress(sockets)
	if err != nil {
		return err
	}
	authenticator, certificate, err := o.Prepare(addr)
	if err != nil {
		return err
	}
	if o.Web && addr.Kind != ListenWebSocket && addr.Kind != listenUnix {
		return fmt.Errorf("--web requires a WebSocket or unix listener, not %s", addr.Kind)
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
		Log: log, Mode: sandbox.Mode(o.Sandbox), Hide: addr.sockets(), Sockets: o.sandboxSockets, Private: Given(nil, o.runDirectory),
		Secrets: func() []string { return o.secrets(authenticator) }, Trusted: func() []string { return o.trusted(authenticator) },
	})
	defer engine.Close()
	extensions := &extension.Options{Ownership: ownership, Sandbox: engine, Recorder: recorder}
	if o.Fleet != nil {
		extensions.Machine = o.Fleet.Machine()
	}
	if o.Web {
		extensions.Page = web.New()
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

		Extensions: extensions,
		StreamKeep: o.streamKeep,
		Session: server.SessionOptions{
			DetachedTTL:        o.detachedTTL,
			MaxSessions:        o.MaxSessions,
			RetainedBytes:      o.retainedBytes,
			RetainedTotalBytes: o.retainedTotal,
			EvictDetached:      o.detachedOutput == "evict",
		},
	}
	o.ApplyAccess(options)
	srv := server.New(options)

	signals, hangups, drains := make(chan os.Signal, 1), make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(signals, Ending()...)
	notifyDrain(drains)
	signal.Notify(hangups, syscall.SIGHUP)
	cli.IgnoreBrokenPipes()
	catchIgnored()                                           // the other ignored signals
	ended := make(chan error, 2+max(2, len(addr.inherited))) // listeners, and two for metrics
	if addr.Kind == listenFleet {
		leave, err := o.Fleet.Join(srv, log, drains, ended)
		if err != nil {
			return err
		}
		defer leave()
	} else if err := Start(srv, log, addr, *o, ended); err != nil {
		return err
	}
	scraped.serve(srv, ended)
	reloading, stop := context.WithCancel(context.Background())
	defer stop()
	go Reload(reloading, log, srv, audited, hangups, manager, map[string]Refresher{
		"credentials": authenticator, "TLS certificate": certificate,
	})
	manager.Say("READY=1")
	err = untilEnd(srv, log, manager, signals, drains, ended, o.awaitIdle(reloading, srv))
	manager.Say("STOPPING=1")
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

// listenAddress returns the address to listen on. sockets is the number of inherited sockets.
func (o *Flags) listenAddress(sockets int) (addr Address, err error) {
	if o.Fleet != nil {
		return Address{Kind: listenFleet}, nil
	}
	addr, err = ParseListen(o.Listen, o.TLSCert != "")
	if err == nil && addr.Kind == listenInherited {
		addr, err = inheritedAddress(sockets)
	}
	return addr, err
}

// untilEnd waits until a signal or the last session of a drained server ends it, or it ends by
// itself.
func untilEnd(srv *server.Server, log *slog.Logger, manager serviceManager, signals, drains <-chan os.Signal, ended <-chan error, idle <-chan struct{}) error {
	var drained <-chan struct{}
	for {
		select {
		case received := <-signals:
			log.Info("shutting down", "signal", received.String())
			return nil
		case <-drains:
			log.Warn("draining: there will be no new sessions, and the server ends with its last one")
			manager.Say("STATUS=draining: no new sessions")
			drained = srv.Drain()
		case <-idle:
			log.Info("nobody uses the server any more")
			idle, drained = nil, srv.Drain() // a client may have come just now
		case <-drained:
			log.Info("shutting down", "reason", "the last session has ended")
			return nil
		case err := <-ended:
			return err
		}
	}
}

// awaitIdle returns a channel that is closed when the server has been idle for --idle-exit.
func (o *Flags) awaitIdle(ctx context.Context, srv *server.Server) <-chan struct{} {
	if o.idleExit == 0 {
		return nil
	}
	idle := make(chan struct{})
	go func() { // until ctx is done
		if srv.AwaitIdle(ctx, o.idleExit) == nil {
			close(idle)
		}
	}()
	return idle
}

// Prepare checks the flags against each other, and reads the files that decide who may connect.
func (o *Flags) Prepare(addr Address) (*server.Authenticator, *auth.Reloaded[*tls.Certificate], error) {
	if addr.Kind == listenUnix && o.mode != "" {
		return nil, nil, errors.New("websocket authentication does not apply to a unix socket, which only its owner can open")
	}
	if addr.Kind != ListenWebSocket && o.TLSCert != "" {
		return nil, nil, fmt.Errorf("--tls-cert and --tls-key require a WebSocket listener, not %s", addr.Kind)
	}
	if addr.Kind != listenUnix && o.peers.Others() {
		return nil, nil, fmt.Errorf("--allow-uid and --allow-gid require a unix socket, not %s", addr.Kind)
	}
	if o.peers.Others() && !auth.PeersSupported {
		return nil, nil, fmt.Errorf("--allow-uid and --allow-gid: %w", auth.ErrPeersUnsupported)
	}
	authenticator, err := o.authenticator(addr)
	if err != nil {
		return nil, nil, err
	}
	if err := addr.CheckOpen(authenticator != server.Unauthenticated, o.insecureNoAuth); err != nil {
		return nil, nil, err
	}
	certificate, err := o.loadTLS(authenticator)
	return authenticator, certificate, err
}

// finishWrites waits for writes in place, which would otherwise leave torn files. Another signal
// ends the wait.
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

// maxRotated bounds the older audit logs that sandboxes hide, because a command with access to
// their directory can create such names.
const maxRotated = 64

// rotated returns the older files of an audit log by the names that log rotation uses, such as
// audit.log.1 and audit.log-20261123.gz.
func rotated(log string) (files []string) {
	if log == "" {
		return nil
	}
	entries, _ := os.ReadDir(filepath.Dir(log)) // without the directory, no log exists
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

// Start starts to serve. ended receives the error when serving ends by itself.
func Start(srv *server.Server, log *slog.Logger, addr Address, o Flags, ended chan<- error) error {
	switch addr.Kind {
	case ListenStdio:
		in := interruptible(os.Stdin)
		sys.EnlargePipe(in)
		sys.EnlargePipe(os.Stdout)
		end := func() error { return errors.Join(in.Close(), os.Stdout.Close()) }
		conn := transport.NewLines("stdio", in, os.Stdout, end, transport.DefaultMaxMessageBytes)
		go func() {
			_ = srv.ServeOnly(conn) // the log has the reason; the end of a client is not a failure
			ended <- nil
		}()
		go func() { // ends with the program
			if awaitNoReader(os.Stdout) { // the client has left, although another process may hold stdin open
				_ = conn.Close(transport.Reason{})
			}
		}()
		return nil
	case listenUnix:
		listen := auth.ListenUnix
		if o.peers.Others() {
			listen = auth.ListenUnixForAll
		}
		listeners := addr.inherited
		if listeners == nil {
			path, err := o.socketPath(addr)
			if err != nil {
				return err
			}
			listener, err := listen(path)
			if err != nil {
				return err
			}
			listeners = []net.Listener{listener}
		}
		o.Banner(log, "unix://"+addr.address)
		for _, listener := range listeners {
			go func() { ended <- srv.ServeUnix(listener) }()
		}
		return nil
	}
	listeners, shown, err := addr.open()
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

// socketPath returns the path at which to bind the socket.
func (o *Flags) socketPath(addr Address) (string, error) {
	if o.runDirectory == "" {
		return addr.address, nil
	}
	dir, err := os.Open(o.runDirectory) // stays open, because the path may need it
	if err != nil {
		return "", err
	}
	runDirectories = append(runDirectories, dir)
	return relay.SocketPath(dir), nil
}

// runDirectories stay open until the program ends.
var runDirectories []*os.File

// maxLog bounds the log of a server that connect's relay has started, because nobody rotates it.
const maxLog = 1 << 20

// boundedLog empties a file when it is full. Others may append to the file.
type boundedLog struct {
	mu   sync.Mutex
	file *os.File
}

// Write implements io.Writer.
func (l *boundedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if info, err := l.file.Stat(); err == nil && info.Mode().IsRegular() && info.Size() > maxLog {
		_ = l.file.Truncate(0)
	}
	return l.file.Write(b)
}

// Banner prints the URL of the server for launchers: newer ones read it from stdout, and the
// oldest find it in a sentence on stderr.
func (o *Flags) Banner(log *slog.Logger, url string) {
	if _, err := fmt.Println(url); err != nil {
		// The launcher may have closed it.
		log.Warn("cannot write the server's URL to standard output", "url", url, "error", err)
	}
	o.Say("exec-server listening on " + url)
}
