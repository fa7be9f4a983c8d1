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
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/internal/auth"
	"execserver/internal/errno"
	"execserver/internal/sandbox"
	"execserver/internal/trusted"
	"execserver/process"
	"execserver/server"
	"execserver/session"
	"execserver/transport"
)

// shutdownTimeout bounds how long the program waits at its end for clients to
// take their last messages. Processes are dead before.
const shutdownTimeout = 200 * time.Millisecond

// killTimeout bounds how long the program kills at its end what its sessions
// have left: only what cannot be killed takes as long.
const killTimeout = 2 * time.Second

// writeTimeout bounds how long the program waits at its end for files that are
// being written in place.
const writeTimeout = 30 * time.Second

// options are the flags of the server.
type options struct {
	listen              string
	insecureNoAuth      bool
	doors               doors
	tlsCert, tlsKey     string
	tls                 *tls.Config // nil: none
	peers               auth.Peers
	exitOnStdinClose    bool
	auth                auth.Config
	maxClockSkew        uint64
	detachedTTL         time.Duration
	silentTTL           time.Duration
	detachedOutput      string
	retainedBytes       int64
	retainedTotal       int64
	maxMessageBytes     int64
	maxConnections      int
	maxSessions         int
	maxProcesses        int
	maxObservers        int
	allowDirect         bool
	allowPrepared       bool
	maxHTTPBodyBytes    int64
	durableWrites       bool
	keeper, cgroups     string
	keepDescendants     bool
	drainTimeout        time.Duration
	sandbox             string
	sandboxSockets      []string
	auditLog            string
	auditRequired       bool
	logLevel, logFormat string
	version             bool
}

func newCommand() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "exec-server",
		Short: "Run commands, terminals and file operations on this machine for an agent",
		Long: "exec-server serves the exec-server protocol of Codex over WebSocket, a unix socket or stdio:\n" +
			"it starts processes with pipes or a terminal, keeps their output through lost connections,\n" +
			"reads, writes and watches files, and sends HTTP requests.",
		Example: "  exec-server --listen unix://$HOME/exec-server.sock\n" +
			"  exec-server --listen stdio\n" +
			"  exec-server --listen ws://0.0.0.0:8765 --ws-auth capability-token --ws-token-file ~/.config/exec-server/token\n" +
			"  exec-server --listen ws://127.0.0.1:8765",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			if o.version { // not cobra's own, whose template costs the program 2 MB
				_, err := fmt.Fprintln(command.OutOrStdout(), "exec-server", buildVersion())
				return err
			}
			if err := o.complete(command.Flags()); err != nil {
				return &usageError{err, command}
			}
			return serve(o)
		},
	}
	command.CompletionOptions.HiddenDefaultCmd = true
	command.SetFlagErrorFunc(flagError)
	args := command.Args
	command.Args = func(c *cobra.Command, given []string) error {
		if err := args(c, given); err != nil {
			return &usageError{fmt.Errorf("unexpected argument %q", given[0]), c}
		}
		return nil
	}
	o.define(command.Flags())
	command.AddCommand(newRunCommand(), newSandboxCommand(), newAuditCommand())
	return command
}

func (o *options) define(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.listen, "listen", "ws://127.0.0.1:0", "`URL` to serve at: ws://IP:PORT, wss://IP:PORT, unix:///PATH or stdio; port 0 picks a free one")
	f.BoolVar(&o.insecureNoAuth, "insecure-no-auth", false, "listen beyond this machine without authentication: whoever can connect can run commands")
	o.doors.define(f)
	f.StringVar(&o.tlsCert, "tls-cert", "", "PEM `file` with the certificate chain, to serve wss://")
	f.StringVar(&o.tlsKey, "tls-key", "", "PEM `file` with the private key of --tls-cert")
	f.StringVar(&o.auth.ClientCAFile, "tls-client-ca", "", "PEM `file` with the authorities whose certificates clients must have")
	f.UintSliceVar(&o.peers.UIDs, "allow-uid", nil, "`number` of a user that may connect to the unix socket, besides the own one and root; may be repeated")
	f.UintSliceVar(&o.peers.GIDs, "allow-gid", nil, "`number` of a group whose members may connect to the unix socket; may be repeated")
	f.BoolVar(&o.exitOnStdinClose, "exit-on-stdin-close", false, "end when standard input ends, as stdio does anyway")

	f.StringVar(&o.auth.Mode, "ws-auth", "", "`mode` of authentication: capability-token or signed-bearer-token")
	f.StringVar(&o.auth.TokensFile, "tokens", "", "TOML `file` with any number of tokens, instead of --ws-auth")
	f.StringVar(&o.auth.TokenFile, "ws-token-file", "", "`file` with the capability token")
	f.StringVar(&o.auth.TokenSHA256, "ws-token-sha256", "", "SHA-256 of the capability token in `hex`, instead of a file")
	f.StringVar(&o.auth.SharedSecretFile, "ws-shared-secret-file", "", "`file` with the HMAC secret of signed bearer tokens (JWT, HS256)")
	f.StringVar(&o.auth.JWKSFile, "ws-jwks-file", "", "JWKS `file` with the public keys of signed bearer tokens (JWT, EdDSA and RS256)")
	f.StringVar(&o.auth.Issuer, "ws-issuer", "", "`name` of the issuer that signed bearer tokens must have")
	f.StringVar(&o.auth.Audience, "ws-audience", "", "`name` of the audience that signed bearer tokens must have")
	f.Uint64Var(&o.maxClockSkew, "ws-max-clock-skew-seconds", 30, "`seconds` that the clocks of signer and server may differ")
	f.BoolVar(&o.auth.AllowQueryToken, "ws-allow-query-token", false, "also take the token from ?token=… in the URL, for clients before 0.158, which cannot send a header")

	f.DurationVar(&o.detachedTTL, "detached-session-ttl", session.DefaultDetachedTTL, "`time` that a session and its processes live without a connection")
	f.DurationVar(&o.silentTTL, "silent-session-ttl", session.DefaultSilentTTL, "`time` that they live when the client only fell silent, as that of a sleeping laptop does")
	f.StringVar(&o.detachedOutput, "detached-output", "block", "`policy` for a process that has filled its retention without a connection: block it, or evict its oldest output")
	f.Int64Var(&o.retainedBytes, "retained-output-bytes", process.DefaultRetainedBytes, "`bytes` of output retained per process")
	f.Int64Var(&o.retainedTotal, "retained-output-total", session.DefaultRetainedTotalBytes, "`bytes` of output retained for all processes")

	f.Int64Var(&o.maxMessageBytes, "max-message-bytes", transport.DefaultMaxMessageBytes, "`bytes` of the largest message accepted")
	f.IntVar(&o.maxConnections, "max-connections", server.DefaultMaxConnections, "`number` of connections with a session at the same time; who comes back to one is never refused")
	f.IntVar(&o.maxSessions, "max-sessions", session.DefaultMaxSessions, "`number` of sessions at the same time, detached ones included")
	f.IntVar(&o.maxProcesses, "max-processes-per-session", session.DefaultMaxProcesses, "`number` of live processes of one session")
	f.IntVar(&o.maxObservers, "max-observers-per-session", session.DefaultMaxObservers, "`number` of connections that observe one session at the same time")
	f.Int64Var(&o.maxHTTPBodyBytes, "max-http-body-bytes", server.DefaultMaxHTTPBodyBytes, "`bytes` of the largest body of an HTTP response that is not streamed")

	f.BoolVar(&o.durableWrites, "durable-writes", false, "answer a write of a file only when its content is on disk")
	f.BoolVar(&o.allowDirect, "allow-direct-exec", false, "let clients start programs with exactly the environment that they give")
	f.BoolVar(&o.allowPrepared, "allow-prepared-exec", false, "let clients start programs by path, with nothing looked up or added")

	f.StringVar(&o.keeper, "keeper", "auto", "`choice` of a small parent process that ends what the server has started when it is killed: auto, on or off")
	f.StringVar(&o.cgroups, "cgroups", "auto", "`choice` of control groups, which hold together what a process starts, and limit it: auto, on or off")
	f.BoolVar(&o.keepDescendants, "allow-keep-descendants", false, "let clients start processes whose background processes outlive the session and the server")
	f.DurationVar(&o.drainTimeout, "drain-timeout", process.DefaultDrainTimeout, "`time` after its end that background processes which write to a process's streams keep it from closing, 0 for as long as they hold them, in silence as well")

	f.StringVar(&o.sandbox, "sandbox", "auto", "`mode` of sandboxes: auto enforces what clients ask for or refuses it, require starts nothing without, "+
		"off refuses what asks for one (for machines that are sandboxes themselves), landlock uses Landlock alone, for what needs no more")

	f.StringArrayVar(&o.sandboxSockets, "sandbox-socket", nil, "`path` of a socket of another program, or a directory of such, that commands in a sandbox with network may use; may be repeated")

	f.StringVar(&o.auditLog, "audit-log", "", "`file` to which is written what clients do, one JSON object to a line, each with the hash of the one before")
	f.BoolVar(&o.auditRequired, "audit-required", false, "refuse what cannot be written to the audit log")
	f.StringVar(&o.logLevel, "log-level", "warn", "`level` of the log on standard error: debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "`format` of the log: text or json")

	f.BoolP("help", "h", false, "print this text")
	f.BoolVarP(&o.version, "version", "v", false, "print the version")
}

// complete checks what the flag library cannot.
func (o *options) complete(f *pflag.FlagSet) error {
	for _, name := range []string{"ws-auth", "ws-token-file", "ws-token-sha256", "ws-shared-secret-file", "ws-jwks-file", "tokens", "tls-cert", "tls-key", "tls-client-ca", "audit-log"} {
		// An unset variable in a script must not open the server.
		if flag := f.Lookup(name); flag.Changed && flag.Value.String() == "" {
			return fmt.Errorf("--%s needs a value", name)
		}
	}
	if f.Changed("ws-max-clock-skew-seconds") {
		o.auth.MaxClockSkewSeconds = &o.maxClockSkew
	}
	for _, limit := range []struct {
		flag  string
		value int64
	}{
		{"detached-session-ttl", int64(o.detachedTTL)},
		{"silent-session-ttl", int64(o.silentTTL)},
		{"retained-output-bytes", o.retainedBytes},
		{"retained-output-total", o.retainedTotal},
		{"max-message-bytes", o.maxMessageBytes},
		{"max-connections", int64(o.maxConnections)},
		{"max-sessions", int64(o.maxSessions)},
		{"max-processes-per-session", int64(o.maxProcesses)},
		{"max-observers-per-session", int64(o.maxObservers)},
		{"max-http-body-bytes", o.maxHTTPBodyBytes},
	} {
		// Zero would mean "no limit" to some and "nothing" to others.
		if limit.value <= 0 {
			return invalidValue(limit.flag, f.Lookup(limit.flag).Value.String(), "must be greater than zero")
		}
	}
	switch o.auth.Mode {
	case "", auth.ModeCapabilityToken, auth.ModeSignedBearerToken:
	default:
		return invalidValue("ws-auth", o.auth.Mode, "expected capability-token or signed-bearer-token")
	}
	for _, choice := range []struct {
		flag, value string
	}{
		{"keeper", o.keeper},
		{"cgroups", o.cgroups},
	} {
		if choice.value != "auto" && choice.value != "on" && choice.value != "off" {
			return invalidValue(choice.flag, choice.value, "expected auto, on or off")
		}
	}
	if err := o.doors.complete(); err != nil {
		return err
	}
	switch sandbox.Mode(o.sandbox) {
	case sandbox.ModeAuto, sandbox.ModeRequire, sandbox.ModeOff, sandbox.ModeLandlock:
	default:
		return invalidValue("sandbox", o.sandbox, "expected auto, require, off or landlock")
	}
	for _, path := range o.sandboxSockets {
		if !filepath.IsAbs(path) {
			return invalidValue("sandbox-socket", path, "expected an absolute path")
		}
	}
	if o.drainTimeout < 0 {
		return invalidValue("drain-timeout", o.drainTimeout.String(), "must not be negative")
	}
	if o.drainTimeout == 0 {
		o.drainTimeout = -1 // as session.Options spells it
	}
	if o.detachedOutput != "block" && o.detachedOutput != "evict" {
		return invalidValue("detached-output", o.detachedOutput, "expected block or evict")
	}
	switch {
	case o.auditRequired && o.auditLog == "":
		return errors.New("--audit-required needs --audit-log")
	case o.tlsCert != "" && o.tlsKey == "":
		return errors.New("--tls-cert needs --tls-key")
	case o.tlsKey != "" && o.tlsCert == "":
		return errors.New("--tls-key needs --tls-cert")
	}
	_, err := o.newLog(io.Discard)
	return err
}

func (o *options) newLog(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return nil, invalidValue("log-level", o.logLevel, "expected debug, info, warn or error")
	}
	handlerOptions := &slog.HandlerOptions{Level: level}
	switch o.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, handlerOptions)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, handlerOptions)), nil
	}
	return nil, invalidValue("log-format", o.logFormat, "expected text or json")
}

// serve runs the server until a signal, the end of stdio, or a failure; or it
// becomes the keeper of one that does.
func serve(o options) error {
	log, err := o.newLog(os.Stderr)
	if err != nil {
		return err
	}
	if o.wantsKeeper() {
		err := o.keep()
		if o.keeper == "on" {
			return err
		}
		log.Warn("the server has no keeper: if it is killed, what it has started may live on", "error", err)
	}
	if err := inheritNothing(); err != nil {
		return fmt.Errorf("keep the descriptors that the server was started with from its processes: %w", err)
	}
	return o.serve(log)
}

// serve is the server proper.
func (o *options) serve(log *slog.Logger) error {
	where, err := parseListen(o.listen, o.tlsCert != "")
	if err != nil {
		return err
	}
	if where.kind == listenUnix && o.auth.Mode != "" {
		return errors.New("websocket authentication does not apply to a unix socket, which only its owner can open")
	}
	if where.kind != listenWebSocket && o.tlsCert != "" {
		return fmt.Errorf("--tls-cert and --tls-key require a WebSocket listener, not %s", where.kind)
	}
	if where.kind != listenUnix && o.peers.Others() {
		return fmt.Errorf("--allow-uid and --allow-gid require a unix socket, not %s", where.kind)
	}
	if o.peers.Others() && !auth.PeersKnown {
		return fmt.Errorf("--allow-uid and --allow-gid: %w", auth.ErrPeersUnknown)
	}
	authenticator, err := auth.New(o.auth, where.kind == listenWebSocket)
	if err != nil {
		return err
	}
	if err := where.checkOpen(authenticator != nil, o.insecureNoAuth); err != nil {
		return err
	}
	certificate, err := o.loadTLS(authenticator)
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
		Peers:            &o.peers,
		Audit:            audited,

		Sandbox: engine,

		AllowDirectExec:   o.allowDirect,
		AllowPreparedExec: o.allowPrepared,

		AllowKeepDescendants: o.keepDescendants,

		Session: session.Options{
			Ownership:     ownership,
			DrainTimeout:  o.drainTimeout,
			DetachedTTL:   o.detachedTTL,
			SilentTTL:     o.silentTTL,
			MaxSessions:   o.maxSessions,
			MaxProcesses:  o.maxProcesses,
			MaxObservers:  o.maxObservers,
			RetainedBytes: o.retainedBytes,
			Budget:        process.NewBudget(o.retainedTotal),
			EvictDetached: o.detachedOutput == "evict",
		},
	}
	o.doors.apply(options)
	srv := server.New(options)

	signals, hangups := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(signals, ending()...)
	signal.Notify(hangups, syscall.SIGHUP)
	ignoreBrokenPipes()
	catchIgnored() // the rest
	ended := make(chan error, 1)
	if err := start(srv, log, where, *o, ended); err != nil {
		return err
	}
	if o.exitOnStdinClose && where.kind != listenStdio {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			log.Info("standard input ended")
			ended <- nil
		}()
	}
	reloading, stop := context.WithCancel(context.Background())
	defer stop()
	go reload(reloading, log, srv, audited, hangups, map[string]refresher{
		"credentials": authenticator, "TLS certificate": certificate,
	})
	select {
	case received := <-signals:
		log.Info("shutting down", "signal", received.String())
	case err = <-ended:
	}
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if timeout := srv.Shutdown(ctx); timeout != nil {
		log.Info("not everything ended in time", "error", timeout)
	}
	finishWrites(srv, log)
	engine.Close()
	ownership.KillAll(killTimeout)
	return err
}

// finishWrites waits for files that are being written in place, which a program
// that ends would leave torn. Another signal ends the wait.
func finishWrites(srv *server.Server, log *slog.Logger) {
	ctx, stop := signal.NotifyContext(context.Background(), ending()...)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := srv.FinishWrites(ctx); err != nil {
		log.Error("a file that was being written in place is left with a part of its new content", "error", err)
	}
}

// secrets are the files that nobody but the server reads.
func (o *options) secrets(authenticator *auth.Authenticator) []string {
	return given(authenticator.Paths(trusted.Secret), o.tlsKey, o.auditLog)
}

// trusted are the other files by which the server and its clients know each other.
func (o *options) trusted(authenticator *auth.Authenticator) []string {
	return given(authenticator.Paths(trusted.Public), o.tlsCert)
}

// given adds those files that there are.
func given(to []string, files ...string) []string {
	for _, file := range files {
		if file != "" {
			to = append(to, file)
		}
	}
	return to
}

// start begins to serve; ended gets the reason when serving ends by itself.
func start(srv *server.Server, log *slog.Logger, where listenAddress, o options, ended chan<- error) error {
	switch where.kind {
	case listenStdio:
		conn := transport.NewStdio(interruptible(os.Stdin), os.Stdout, o.maxMessageBytes)
		go func() {
			_ = srv.ServeOnly(conn) // the log tells why; a client that leaves is no failure
			ended <- nil
		}()
		return nil
	case listenUnix:
		listen := transport.ListenUnix
		if o.peers.Others() {
			listen = transport.ListenUnixForAll
		}
		listener, err := listen(where.address)
		if err != nil {
			return err
		}
		banner(log, "unix://"+where.address)
		go func() { ended <- srv.ServeUnix(listener) }()
		return nil
	}
	var config net.ListenConfig
	config.SetMultipathTCP(false) // a peer's end of one is not always told by the kernel
	listener, err := config.Listen(context.Background(), where.network(), where.address)
	if err != nil {
		err = fmt.Errorf("listen on %s: %w", where.address, errno.Wrap(err))
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w; end what listens there, or choose another port (0 picks a free one)", err)
		}
		return err
	}
	url := "ws://" + listener.Addr().String()
	if o.tls != nil {
		listener = tls.NewListener(listener, o.tls)
		url = "wss://" + listener.Addr().String()
	}
	banner(log, url)
	go func() { ended <- srv.ServeWebSocket(listener) }()
	return nil
}

// banner tells launchers where the server is: newer ones read the URL from
// stdout, the oldest look for it in a sentence on stderr.
func banner(log *slog.Logger, url string) {
	if _, err := fmt.Println(url); err != nil {
		// Whoever launched it may not want to know.
		log.Warn("cannot say on standard output where the server listens", "url", url, "error", err)
	}
	fmt.Fprintln(os.Stderr, "exec-server listening on "+url)
}
