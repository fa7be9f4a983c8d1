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
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/internal/auth"
	"execserver/process"
	"execserver/server"
	"execserver/session"
	"execserver/transport"
)

// shutdownTimeout bounds how long the program waits at its end for clients to
// take their last messages. Processes are dead before.
const shutdownTimeout = 200 * time.Millisecond

// options are the flags of the server.
type options struct {
	listen             string
	insecureNoAuth     bool
	tlsCert, tlsKey    string
	exitOnStdinClose   bool
	auth               auth.Config
	maxClockSkew       uint64
	detachedTTL        time.Duration
	detachedOutput     string
	retainedBytes      int64
	retainedTotal      int64
	maxMessageBytes    int64
	maxConnections     int
	maxSessions        int
	maxProcesses       int
	logLevel, logForms string
}

func newCommand() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "exec-server",
		Short: "Run commands, terminals and file operations on this machine for an agent",
		Long: "exec-server serves the exec-server protocol of Codex over WebSocket, a unix socket or stdio:\n" +
			"it starts processes with pipes or a terminal, keeps their output through lost connections,\n" +
			"and reads files.",
		Version:       buildVersion(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.complete(command.Flags()); err != nil {
				return &usageError{err, command}
			}
			return serve(o)
		},
	}
	command.SetVersionTemplate("exec-server {{.Version}}\n")
	command.CompletionOptions.HiddenDefaultCmd = true
	command.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return &usageError{err, c} })
	args := command.Args
	command.Args = func(c *cobra.Command, given []string) error {
		if err := args(c, given); err != nil {
			return &usageError{fmt.Errorf("unexpected argument %q", given[0]), c}
		}
		return nil
	}
	o.define(command.Flags())
	return command
}

func (o *options) define(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.listen, "listen", "ws://127.0.0.1:0", "where to serve: `URL` ws://IP:PORT, wss://IP:PORT, unix://PATH, or stdio")
	f.BoolVar(&o.insecureNoAuth, "insecure-no-auth", false, "serve beyond this machine without authentication")
	f.StringVar(&o.tlsCert, "tls-cert", "", "serve wss:// with the certificate chain in this PEM `file`")
	f.StringVar(&o.tlsKey, "tls-key", "", "private key of --tls-cert, a PEM `file`")
	f.BoolVar(&o.exitOnStdinClose, "exit-on-stdin-close", false, "end when standard input ends")

	f.StringVar(&o.auth.Mode, "ws-auth", "", "authentication `mode`: capability-token or signed-bearer-token")
	f.StringVar(&o.auth.TokenFile, "ws-token-file", "", "`file` with the capability token")
	f.StringVar(&o.auth.TokenSHA256, "ws-token-sha256", "", "SHA-256 of the capability token in `hex`, instead of a file")
	f.StringVar(&o.auth.SharedSecretFile, "ws-shared-secret-file", "", "`file` with the HMAC secret of signed bearer tokens (JWT, HS256)")
	f.StringVar(&o.auth.Issuer, "ws-issuer", "", "issuer that signed bearer tokens must `name`")
	f.StringVar(&o.auth.Audience, "ws-audience", "", "audience that signed bearer tokens must `name`")
	f.Uint64Var(&o.maxClockSkew, "ws-max-clock-skew-seconds", 30, "`seconds` that the clocks of signer and server may differ")
	f.BoolVar(&o.auth.AllowQueryToken, "ws-allow-query-token", false, "accept ?token=… in the URL, for clients before 0.158, which cannot send a header")

	f.DurationVar(&o.detachedTTL, "detached-session-ttl", session.DefaultDetachedTTL, "how `long` a session lives without a connection")
	f.StringVar(&o.detachedOutput, "detached-output", "block", "what a full retention does while detached: `block` the child or evict output")
	f.Int64Var(&o.retainedBytes, "retained-output-bytes", process.DefaultRetainedBytes, "output retained per process, in `bytes`")
	f.Int64Var(&o.retainedTotal, "retained-output-total", session.DefaultRetainedTotalBytes, "output retained in total, in `bytes`")

	f.Int64Var(&o.maxMessageBytes, "max-message-bytes", transport.DefaultMaxMessageBytes, "largest incoming message, in `bytes`")
	f.IntVar(&o.maxConnections, "max-connections", server.DefaultMaxConnections, "connections at the same time")
	f.IntVar(&o.maxSessions, "max-sessions", session.DefaultMaxSessions, "sessions at the same time, detached ones included")
	f.IntVar(&o.maxProcesses, "max-processes-per-session", session.DefaultMaxProcesses, "live processes of one session")

	f.StringVar(&o.logLevel, "log-level", "warn", "`level` of the log on standard error: debug, info, warn or error")
	f.StringVar(&o.logForms, "log-format", "text", "`format` of the log: text or json")
}

// complete checks what the flag library cannot.
func (o *options) complete(f *pflag.FlagSet) error {
	for _, name := range []string{"ws-auth", "ws-token-file", "ws-token-sha256", "ws-shared-secret-file", "tls-cert", "tls-key"} {
		// An unset variable in a script must not open the server.
		if flag := f.Lookup(name); flag.Changed && flag.Value.String() == "" {
			return fmt.Errorf("--%s needs a value", name)
		}
	}
	if f.Changed("ws-max-clock-skew-seconds") {
		o.auth.MaxClockSkewSeconds = &o.maxClockSkew
	}
	positive := map[string]int64{
		"detached-session-ttl": int64(o.detachedTTL), "retained-output-bytes": o.retainedBytes,
		"retained-output-total": o.retainedTotal, "max-message-bytes": o.maxMessageBytes,
		"max-connections": int64(o.maxConnections), "max-sessions": int64(o.maxSessions),
		"max-processes-per-session": int64(o.maxProcesses),
	}
	for name, value := range positive {
		if value <= 0 {
			return fmt.Errorf("--%s must be greater than zero", name)
		}
	}
	if o.detachedOutput != "block" && o.detachedOutput != "evict" {
		return fmt.Errorf("--detached-output must be block or evict, not %q", o.detachedOutput)
	}
	if (o.tlsCert == "") != (o.tlsKey == "") {
		return errors.New("--tls-cert and --tls-key need each other")
	}
	_, err := o.newLog(io.Discard)
	return err
}

func (o *options) newLog(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return nil, fmt.Errorf("--log-level must be debug, info, warn or error, not %q", o.logLevel)
	}
	handlerOptions := &slog.HandlerOptions{Level: level}
	switch o.logForms {
	case "text":
		return slog.New(slog.NewTextHandler(w, handlerOptions)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, handlerOptions)), nil
	}
	return nil, fmt.Errorf("--log-format must be text or json, not %q", o.logForms)
}

// serve runs the server until a signal, the end of stdio, or a failure.
func serve(o options) error {
	where, err := parseListen(o.listen, o.tlsCert != "")
	if err != nil {
		return err
	}
	if where.kind == listenUnix && o.auth.Mode != "" {
		return errors.New("websocket authentication does not apply to a unix socket, which only its owner can open")
	}
	authenticator, err := auth.New(o.auth, where.kind == listenWebSocket)
	if err != nil {
		return err
	}
	if err := where.checkOpen(authenticator != nil, o.insecureNoAuth); err != nil {
		return err
	}
	log, err := o.newLog(os.Stderr)
	if err != nil {
		return err
	}
	srv := server.New(&server.Options{
		Log:             log,
		Version:         buildVersion(),
		MaxMessageBytes: o.maxMessageBytes,
		MaxConnections:  o.maxConnections,
		Auth:            authenticator,
		Session: session.Options{
			DetachedTTL:   o.detachedTTL,
			MaxSessions:   o.maxSessions,
			MaxProcesses:  o.maxProcesses,
			RetainedBytes: o.retainedBytes,
			Budget:        process.NewBudget(o.retainedTotal),
			EvictDetached: o.detachedOutput == "evict",
		},
	})

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	ignoreBrokenPipes()
	ended := make(chan error, 1)
	if err := start(srv, where, o, ended); err != nil {
		return err
	}
	if o.exitOnStdinClose && where.kind != listenStdio {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			log.Info("standard input ended")
			ended <- nil
		}()
	}
	select {
	case s := <-signals:
		log.Info("shutting down", "signal", s.String())
	case err = <-ended:
	}
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if timeout := srv.Shutdown(ctx); timeout != nil {
		log.Info("not everything ended in time", "error", timeout)
	}
	return err
}

// start begins to serve; ended gets the reason when serving ends by itself.
func start(srv *server.Server, where listenAddress, o options, ended chan<- error) error {
	switch where.kind {
	case listenStdio:
		conn := transport.NewStdio(os.Stdin, os.Stdout, o.maxMessageBytes)
		go func() {
			_ = srv.ServeOnly(conn) // the log tells why; a client that leaves is no failure
			ended <- nil
		}()
		return nil
	case listenUnix:
		listener, err := transport.ListenUnix(where.address)
		if err != nil {
			return err
		}
		banner("unix://" + where.address)
		go func() { ended <- srv.ServeUnix(listener) }()
		return nil
	}
	listener, err := net.Listen("tcp", where.address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", where.address, bindError(err))
	}
	url := "ws://" + listener.Addr().String()
	if o.tlsCert != "" {
		certificate, err := tls.LoadX509KeyPair(o.tlsCert, o.tlsKey)
		if err != nil {
			_ = listener.Close()
			return fmt.Errorf("load the TLS certificate %s and key %s: %w", o.tlsCert, o.tlsKey, err)
		}
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
		url = "wss://" + listener.Addr().String()
	}
	banner(url)
	go func() { ended <- srv.ServeWebSocket(listener) }()
	return nil
}

// banner tells launchers where the server is: newer ones read the URL from
// stdout, the oldest look for it in a sentence on stderr.
func banner(url string) {
	fmt.Println(url)
	fmt.Fprintln(os.Stderr, "exec-server listening on "+url)
}

// bindError is the system's reason without the address, which is named already.
func bindError(err error) error {
	if e := syscall.Errno(0); errors.As(err, &e) {
		return fmt.Errorf("%w (os error %d)", e, int(e))
	}
	return err
}
