package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/internal/auth"
	"execserver/internal/process"
	"execserver/internal/sandbox"
	"execserver/internal/session"
	"execserver/internal/workspace"
	"execserver/server"
	"execserver/transport"
)

// options are the flags of the server.
type options struct {
	config              string
	listen              string
	insecureNoAuth      bool
	doors               doors
	tlsCert, tlsKey     string
	tls                 *tls.Config // nil for none
	peers               auth.Peers
	exitOnStdinClose    bool
	auth                authFlags
	detachedTTL         time.Duration
	silentTTL           time.Duration
	maxKeep             time.Duration
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
	record              recordFlags
	workspaceTexts      []string
	workspaces          []workspace.Workspace
	private             string // see keeper.Info
	logLevel, logFormat string
	metrics             metricsFlags
	web                 webFlags
	fleet               fleetFlags // of join alone
}

// newServeCommand returns the subcommand serve, which does what the program does without a
// subcommand.
func newServeCommand() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:     "serve [flags]",
		Short:   "Serve the exec-server protocol to agents",
		GroupID: groupServe,
		Long: "serve serves the exec-server protocol of Codex over WebSocket, a unix socket or stdio:\n" +
			"it starts processes with pipes or a terminal, keeps their output through lost connections,\n" +
			"reads, writes and watches files, and sends HTTP requests. It prints its URL when it listens.\n" +
			"exec-server without a subcommand does the same, with the same flags.",
		Example: "  exec-server serve --listen unix://$HOME/exec-server.sock\n" +
			"  exec-server serve --listen stdio\n" +
			"  exec-server serve --listen ws://0.0.0.0:8765 --ws-auth capability-token --ws-token-file ~/.config/exec-server/token\n" +
			"  exec-server serve --listen ws://localhost:8765",
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error { return o.run(command) },
	}
	o.define(command.Flags())
	command.Flags().BoolP("help", "h", false, "print this text")
	return command
}

// run serves as the flags of command say.
func (o *options) run(command *cobra.Command) error {
	if err := o.configure(command.Flags()); err != nil {
		return err
	}
	if err := o.complete(command.Flags()); err != nil {
		return &usageError{err, command}
	}
	return serve(*o)
}

func (o *options) define(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.config, configName, "", "read settings by the names of these flags from this TOML `file`; a flag of the command line counts instead of the file's")
	f.StringVar(&o.listen, "listen", "ws://127.0.0.1:0", "listen at `URL`: ws://IP:PORT, wss://IP:PORT, unix:///PATH or stdio; IP may be localhost; port 0 picks a free port; systemd takes the sockets of a socket unit")
	f.BoolVar(&o.insecureNoAuth, "insecure-no-auth", false, "listen beyond this machine without authentication: everybody who can connect can run commands")
	o.doors.define(f)
	f.StringVar(&o.tlsCert, "tls-cert", "", "serve wss:// with the certificate chain in this PEM `file`")
	f.StringVar(&o.tlsKey, "tls-key", "", "read the private key of --tls-cert from this PEM `file`")
	f.StringVar(&o.auth.config.ClientCAFile, "tls-client-ca", "", "require a client certificate from an authority in this PEM `file`")
	f.UintSliceVar(&o.peers.UIDs, "allow-uid", nil, "admit the user with this `number` to the unix socket, besides the server's own user and root; may be repeated")
	f.UintSliceVar(&o.peers.GIDs, "allow-gid", nil, "admit the members of the group with this `number` to the unix socket; may be repeated")
	for _, name := range []string{"allow-uid", "allow-gid"} {
		f.Lookup(name).DefValue = "" // or help would say (default [])
	}
	f.BoolVar(&o.exitOnStdinClose, "exit-on-stdin-close", false, "exit when standard input ends; --listen stdio always does")

	o.auth.define(f)

	f.DurationVar(&o.detachedTTL, "detached-session-ttl", session.DefaultDetachedTTL, "keep a session and its processes for this `time` without a connection")
	f.DurationVar(&o.silentTTL, "silent-session-ttl", session.DefaultSilentTTL, "keep them for this `time` if the client only fell silent, as a sleeping laptop does")
	f.DurationVar(&o.maxKeep, "max-session-keep", session.DefaultMaxKeep, "keep a session without a connection for up to this `time` if its client asks for it; 0 refuses that")
	f.StringVar(&o.detachedOutput, "detached-output", "block", "`policy` when a process without a connection has filled its retained output: block the process, or evict its oldest output")
	f.Int64Var(&o.retainedBytes, "retained-output-bytes", process.DefaultRetainedBytes, "retain up to this many `bytes` of output for each process")
	f.Int64Var(&o.retainedTotal, "retained-output-total", session.DefaultRetainedTotalBytes, "retain up to this many `bytes` of output for all processes together")

	f.Int64Var(&o.maxMessageBytes, "max-message-bytes", transport.DefaultMaxMessageBytes, "largest message that a client may send, in `bytes`")
	f.IntVar(&o.maxConnections, "max-connections", server.DefaultMaxConnections, "largest `number` of connections with a session; a client that resumes its session is never refused")
	f.IntVar(&o.maxSessions, "max-sessions", session.DefaultMaxSessions, "largest `number` of sessions, including those without a connection")
	f.IntVar(&o.maxProcesses, "max-processes-per-session", session.DefaultMaxProcesses, "largest `number` of live processes of one session")
	f.IntVar(&o.maxObservers, "max-observers-per-session", session.DefaultMaxObservers, "largest `number` of connections that observe one session")
	f.Int64Var(&o.maxHTTPBodyBytes, "max-http-body-bytes", server.DefaultMaxHTTPBodyBytes, "largest body of an HTTP response that is not streamed, in `bytes`")

	f.BoolVar(&o.durableWrites, "durable-writes", false, "reply to a file write only when the content is on disk")
	f.BoolVar(&o.allowDirect, "allow-direct-exec", false, "let clients start programs with exactly the environment that they send")
	f.BoolVar(&o.allowPrepared, "allow-prepared-exec", false, "let clients start programs by absolute path; the server looks nothing up and adds nothing")

	f.StringVar(&o.keeper, "keeper", "auto", "run a small parent process that ends everything the server started if the server is killed; `choice` is auto, on or off")
	f.StringVar(&o.cgroups, "cgroups", "auto", "use control groups to find, limit and kill the descendants of processes; `choice` is auto, on or off")
	f.BoolVar(&o.keepDescendants, "allow-keep-descendants", false, "let clients start processes whose background processes outlive the session and the server")
	f.DurationVar(&o.drainTimeout, "drain-timeout", process.DefaultDrainTimeout, "`time` after the exit of a process for which descendants that hold its output can delay its closing; 0 waits until they let go")

	f.StringArrayVar(&o.workspaceTexts, "workspace", nil, "make the directory `PATH`, or with PATH=DIRECTORY show the directory at PATH, for clients that name the directories of their own machine; may be repeated")

	f.StringVar(&o.sandbox, "sandbox", "auto", "sandbox `mode`: auto enforces the sandbox that a client requests, or refuses the request; require also refuses commands without a sandbox; "+
		"off refuses every request for a sandbox, on a machine that is a sandbox itself; landlock uses Landlock alone and refuses what needs more")

	f.StringArrayVar(&o.sandboxSockets, "sandbox-socket", nil, "let sandboxed commands with a network use the unix socket at this `path`, or the sockets in this directory; may be repeated")

	f.StringVar(&o.auditLog, "audit-log", "", "record what clients do in this `file`, one JSON object to a line, each with the hash of the line before")
	f.BoolVar(&o.auditRequired, "audit-required", false, "refuse actions that cannot be recorded in the audit log")
	o.metrics.define(f)
	o.web.define(f)
	o.record.define(f)
	f.StringVar(&o.logLevel, "log-level", "warn", "`level` of the log on standard error: debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "text", "`format` of the log: text or json")
}

// complete checks what the flag library cannot.
func (o *options) complete(f *pflag.FlagSet) error {
	for _, name := range []string{"ws-auth", "ws-token-file", "ws-token-sha256", "ws-shared-secret-file", "ws-jwks-file", "ws-issuer", "ws-audience", "tokens", "tls-cert", "tls-key", "tls-client-ca", "audit-log", configName} {
		// An unset variable in a script must not open the server.
		if flag := f.Lookup(name); flag.Changed && flag.Value.String() == "" {
			return fmt.Errorf("--%s needs a value", name)
		}
	}
	if err := o.auth.complete(f); err != nil {
		return err
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
		// Zero could mean "no limit" or "nothing".
		if limit.value <= 0 {
			return invalidValue(limit.flag, f.Lookup(limit.flag).Value.String(), "must be greater than zero")
		}
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
	if err := o.record.complete(f); err != nil {
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
	var err error
	if o.workspaces, err = parseWorkspaces(o.workspaceTexts); err != nil {
		return err
	}
	if o.drainTimeout < 0 {
		return invalidValue("drain-timeout", o.drainTimeout.String(), "must not be negative")
	}
	if o.drainTimeout == 0 {
		o.drainTimeout = -1 // as server.SessionOptions expects
	}
	if o.maxKeep < 0 {
		return invalidValue("max-session-keep", o.maxKeep.String(), "must not be negative")
	}
	if o.maxKeep == 0 {
		o.maxKeep = -1 // as server.SessionOptions expects
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
	_, err = o.newLog(io.Discard)
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
