package serve

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/internal/auth"
	"execserver/internal/cli"
	"execserver/internal/cli/serve/workspace"
	"execserver/internal/extension"
	"execserver/internal/process"
	"execserver/internal/recording"
	"execserver/internal/sandbox"
	"execserver/internal/session"
)

// Flags are the flags of the server, and settings of the program.
type Flags struct {
	listens      bool
	config       string
	Listen       string
	runDirectory string // of connect's relay; it has the socket to listen at, and the log
	accessFlags
	tls                 *tls.Config // nil for none
	peers               auth.Peers
	detachedTTL         time.Duration
	streamKeep          time.Duration
	idleExit            time.Duration // 0 for never
	detachedOutput      string
	retainedBytes       int64
	retainedTotal       int64
	MaxSessions         int
	without             []string
	Sandbox             string
	sandboxSockets      []string
	AuditLog            string
	AuditRequired       bool
	record              recordFlags
	workspaceTexts      []string
	workspaces          []workspace.Workspace
	private             string // see supervisor.Info
	LogLevel, LogFormat string
	metricsListen       string
	Web                 bool
	Version             string
	Fleet               Fleet // joined instead of listening, unless nil
}

// The values of --without.
const (
	withoutSupervisor = "supervisor"
	withoutCgroups    = "cgroups"
)

// runDirectoryName is the name of the flag of connect's relay.
const runDirectoryName = "run-directory"

// Command returns the command serve, which is also the program without a command. version is that
// of the program.
func Command(version string) *cobra.Command {
	o := Flags{Version: version}
	command := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Serve the exec-server protocol to agents",
		Long: "The server starts processes with pipes or a terminal, and keeps their output when a connection\n" +
			"breaks. It reads, writes and watches files, and sends HTTP requests. Clients connect over WebSocket, a\n" +
			"unix socket or stdio.\n\n" +
			"The server prints its URL when it listens. \"exec-server\" without a command is the\n" +
			"same as \"exec-server serve\".",
		Example: "  exec-server serve --listen unix://$HOME/exec-server.sock\n" +
			"  exec-server serve --listen stdio\n" +
			"  exec-server serve --listen wss://0.0.0.0:8765 --tls-cert server.pem --tls-key server.key --tokens tokens.toml\n" +
			"  exec-server serve --listen ws://localhost:8765",
		Args: cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return o.Run(command) },
	}
	o.Define(command.Flags(), true)
	return command
}

// Run serves with the flags of command.
func (o *Flags) Run(command *cobra.Command) error {
	if err := o.configure(command.Flags()); err != nil {
		return err
	}
	if err := o.complete(command.Flags()); err != nil {
		return cli.NewUsageError(err, command)
	}
	return o.Report(serve(*o))
}

// Report returns the error with which the program ends. A log in JSON has recorded the error
// already, so the program prints nothing more.
func (o *Flags) Report(err error) error {
	if err == nil || o.LogFormat != "json" || errors.As(err, new(*cli.UsageError)) || errors.As(err, new(cli.ExitCode)) {
		return err
	}
	newLog(os.Stderr, o.LogFormat, slog.LevelInfo).Error(err.Error())
	return cli.ExitCode(1)
}

// Say prints a message for people and launchers on standard error, at every log level: as a line,
// or as a record of a log in JSON.
func (o *Flags) Say(text string) {
	if o.LogFormat == "json" {
		newLog(os.Stderr, o.LogFormat, slog.LevelInfo).Info(text)
		return
	}
	fmt.Fprintln(os.Stderr, text)
}

// Define defines the flags of a server, with or without those about listening.
func (o *Flags) Define(f *pflag.FlagSet, listens bool) {
	f.SortFlags = false
	f.StringVar(&o.config, configName, "", "read settings from this TOML `file`; their names are those of these flags; flags on the command line override them")
	if o.listens = listens; listens {
		o.defineListening(f)
	}

	f.DurationVar(&o.detachedTTL, "detached-session-ttl", session.DefaultDetachedTTL, "keep a session and its processes for this `time` without a connection; at least 30 minutes if the client only stopped answering, like a sleeping laptop")
	f.StringVar(&o.detachedOutput, "detached-output", "block", "`policy` when no client is connected and the retained output of a process is full: block the process, or evict its oldest output")
	f.Int64Var(&o.retainedBytes, "retained-output-bytes", process.DefaultRetainedBytes, "retain up to this many `bytes` of output for each process")
	f.Int64Var(&o.retainedTotal, "retained-output-total", session.DefaultRetainedTotalBytes, "use up to this many `bytes` of memory to retain the output of all processes")

	f.IntVar(&o.MaxSessions, "max-sessions", session.DefaultMaxSessions, "largest `number` of sessions, with and without a connection")

	f.StringArrayVar(&o.without, "without", nil, "disable this `mechanism` of Linux: supervisor, a parent process that ends everything the server started if the server is killed; "+
		"cgroups, the control groups that find, limit and kill the descendants of processes; may be repeated")

	f.StringArrayVar(&o.workspaceTexts, "workspace", nil, "create the directory `PATH`, or bind-mount DIRECTORY there with PATH=DIRECTORY, for clients that send paths of their own machine; may be repeated")

	f.StringVar(&o.Sandbox, "sandbox", "auto", "sandbox `mode`: auto enforces the sandbox that a client requests, or refuses the command, and runs a command without one if the client requests none; "+
		"require refuses commands without a sandbox; off refuses requests for a sandbox, for a machine that is a sandbox itself; "+
		"landlock uses Landlock alone and refuses what needs more")

	f.StringArrayVar(&o.sandboxSockets, "sandbox-socket", nil, "let sandboxed commands with network access use the unix socket at this `path`, or the sockets in this directory; may be repeated")

	f.StringVar(&o.AuditLog, "audit-log", "", "record what clients do in this `file`, one JSON object per line; - for standard error")
	f.BoolVar(&o.AuditRequired, "audit-required", false, "refuse actions that cannot be recorded in the audit log")
	f.StringVar(&o.metricsListen, "metrics-listen", "", "also serve /metrics and the probes at this `address`, IP:PORT, with the same TLS and authentication")
	o.record.define(f)
	f.StringVar(&o.LogLevel, "log-level", "warn", "`level` of the log on standard error: debug, info, warn or error")
	f.StringVar(&o.LogFormat, "log-format", "text", "`format` of the log: text or json")
}

// defineListening defines the flags about listening.
func (o *Flags) defineListening(f *pflag.FlagSet) {
	cli.AddListenFlag(f, &o.Listen, "ws://127.0.0.1:0", "listen at `URL`: ws://IP:PORT, wss://IP:PORT, unix:///PATH, stdio, or systemd for the sockets of its socket unit; IP may be localhost; port 0 picks a free port")
	f.StringVar(&o.runDirectory, runDirectoryName, "", "listen at the socket in this `directory`, which connect has made, and bound the log there")
	_ = f.MarkHidden(runDirectoryName) // it exists
	o.DefineAccess(f)
	f.UintSliceVar(&o.peers.UIDs, "allow-uid", nil, "admit the user with this UID, a `number`, to the unix socket, in addition to the server's own user and root; may be repeated")
	f.UintSliceVar(&o.peers.GIDs, "allow-gid", nil, "admit the members of the group with this GID, a `number`, to the unix socket; may be repeated")
	for _, name := range []string{"allow-uid", "allow-gid"} {
		f.Lookup(name).DefValue = "" // or help would say (default [])
	}
	f.DurationVar(&o.idleExit, "idle-exit", 0, "end the server when it has had no client, session and process for this `time`; 0 never does")
	f.DurationVar(&o.streamKeep, "stream-keep", 30*time.Minute, "keep a stream over the unix socket, such as that of connect, for this `time` while ssh is broken")
	f.BoolVar(&o.Web, "web", false, "serve a page for browsers at /web of the listener; exec-server web prints a link to it")
}

// complete checks the flags beyond their syntax.
func (o *Flags) complete(f *pflag.FlagSet) error {
	for _, name := range []string{"ws-auth", "ws-token-file", "ws-token-sha256", "tokens", "tls-cert", "tls-key", "tls-client-ca", "audit-log", configName} {
		// An unset variable in a script must not open the server.
		if flag := f.Lookup(name); flag != nil && flag.Changed && flag.Value.String() == "" {
			return fmt.Errorf("--%s needs a value", name)
		}
	}
	if o.runDirectory != "" {
		if !filepath.IsAbs(o.runDirectory) {
			return cli.InvalidValue(runDirectoryName, o.runDirectory, "expected an absolute path")
		}
		o.Listen = "unix://" + filepath.Join(o.runDirectory, "socket")
	}
	if err := o.CompleteAccess(); err != nil {
		return err
	}
	for _, limit := range []struct {
		flag  string
		value int64
	}{
		{"detached-session-ttl", int64(o.detachedTTL)},
		{"retained-output-bytes", o.retainedBytes},
		{"retained-output-total", o.retainedTotal},
		{"max-sessions", int64(o.MaxSessions)},
	} {
		// Zero could mean "no limit" or "nothing".
		if limit.value <= 0 {
			return cli.InvalidValue(limit.flag, f.Lookup(limit.flag).Value.String(), "must be greater than zero")
		}
	}
	if o.idleExit < 0 {
		return cli.InvalidValue("idle-exit", o.idleExit.String(), "must not be negative")
	}
	if keep := f.Lookup("stream-keep"); keep != nil && o.streamKeep < time.Second {
		return cli.InvalidValue(keep.Name, keep.Value.String(), "must be at least one second")
	}
	for _, means := range o.without {
		if means != withoutSupervisor && means != withoutCgroups {
			return cli.InvalidValue("without", means, "expected supervisor or cgroups")
		}
	}
	if err := o.record.complete(f); err != nil {
		return err
	}
	switch sandbox.Mode(o.Sandbox) {
	case sandbox.ModeAuto, sandbox.ModeRequire, sandbox.ModeOff, sandbox.ModeLandlock:
	default:
		return cli.InvalidValue("sandbox", o.Sandbox, "expected auto, require, off or landlock")
	}
	for _, path := range o.sandboxSockets {
		if !filepath.IsAbs(path) {
			return cli.InvalidValue("sandbox-socket", path, "expected an absolute path")
		}
	}
	var err error
	if o.workspaces, err = parseWorkspaces(o.workspaceTexts); err != nil {
		return err
	}
	if o.detachedOutput != "block" && o.detachedOutput != "evict" {
		return cli.InvalidValue("detached-output", o.detachedOutput, "expected block or evict")
	}
	switch {
	case o.AuditRequired && o.AuditLog == "":
		return errors.New("--audit-required needs --audit-log")
	case o.TLSCert != "" && o.TLSKey == "":
		return errors.New("--tls-cert needs --tls-key")
	case o.TLSKey != "" && o.TLSCert == "":
		return errors.New("--tls-key needs --tls-cert")
	}
	_, err = o.NewLog(io.Discard)
	return err
}

func (o *Flags) NewLog(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.LogLevel)); err != nil {
		return nil, cli.InvalidValue("log-level", o.LogLevel, "expected debug, info, warn or error")
	}
	if o.LogFormat != "text" && o.LogFormat != "json" {
		return nil, cli.InvalidValue("log-format", o.LogFormat, "expected text or json")
	}
	return newLog(w, o.LogFormat, level), nil
}

// newLog returns a log in JSON or text.
func newLog(w io.Writer, format string, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// recordFlags are the flags of the server about recordings.
type recordFlags struct {
	dir   string
	input bool
}

func (r *recordFlags) define(f *pflag.FlagSet) {
	f.StringVar(&r.dir, "record", "", "record the output of every process in this `directory`, for asciinema; at most 1 GiB, and for 7 days")
	f.BoolVar(&r.input, "record-input", false, "also record the input of processes, which may contain passwords")
}

// complete checks the flags beyond their syntax.
func (r *recordFlags) complete(f *pflag.FlagSet) error {
	if dir := f.Lookup("record"); dir.Changed && r.dir == "" {
		return errors.New("--record needs a value")
	}
	if r.dir == "" {
		if r.input {
			return errors.New("--record-input needs --record")
		}
		return nil
	}
	dir, err := filepath.Abs(r.dir)
	r.dir = dir
	return err
}

// open returns the recorder, or nil, and a function that closes it.
func (r *recordFlags) open(log *slog.Logger) (_ extension.Recorder, end func(), err error) {
	if r.dir == "" {
		return nil, func() {}, nil
	}
	recorder, err := recording.Open(r.dir, &recording.Options{Log: log, Input: r.input})
	if err != nil {
		return nil, nil, err
	}
	return recorder, recorder.Close, nil
}
