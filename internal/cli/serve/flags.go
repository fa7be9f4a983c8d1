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
	"execserver/internal/process"
	"execserver/internal/sandbox"
	"execserver/internal/session"
	"execserver/internal/workspace"
)

// Flags are the flags of the server, and what the program adds to them.
type Flags struct {
	listens bool
	config  string
	Listen  string
	doors
	tls                 *tls.Config // nil for none
	peers               auth.Peers
	detachedTTL         time.Duration
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
	private             string // see keeper.Info
	LogLevel, LogFormat string
	metricsListen       string
	Web                 bool
	Version             string
	Fleet               Fleet // what the server joins instead of listening, or nil
}

// The values of --without.
const (
	withoutKeeper  = "keeper"
	withoutCgroups = "cgroups"
)

// Command returns the subcommand serve, which does what the program does without a
// subcommand. version is that of the program.
func Command(version string) *cobra.Command {
	o := Flags{Version: version}
	command := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Serve the exec-server protocol to agents",
		Long: "serve serves the exec-server protocol of Codex over WebSocket, a unix socket or stdio:\n" +
			"it starts processes with pipes or a terminal, keeps their output through lost connections,\n" +
			"reads, writes and watches files, and sends HTTP requests. It prints its URL when it listens.\n" +
			"exec-server without a subcommand does the same, with the same flags.",
		Example: "  exec-server serve --listen unix://$HOME/exec-server.sock\n" +
			"  exec-server serve --listen stdio\n" +
			"  exec-server serve --listen ws://0.0.0.0:8765 --ws-auth capability-token --ws-token-file ~/.config/exec-server/token\n" +
			"  exec-server serve --listen ws://localhost:8765",
		Args: cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return o.Run(command) },
	}
	o.Define(command.Flags(), true)
	command.Flags().BoolP("help", "h", false, "print this text")
	return command
}

// Run serves as the flags of command say.
func (o *Flags) Run(command *cobra.Command) error {
	if err := o.configure(command.Flags()); err != nil {
		return err
	}
	if err := o.complete(command.Flags()); err != nil {
		return cli.NewUsageError(err, command)
	}
	return o.Report(serve(*o))
}

// Report returns the error with which the program ends. If the log is for programs, it has
// got the error, and the program says no more.
func (o *Flags) Report(err error) error {
	if err == nil || o.LogFormat != "json" || errors.As(err, new(*cli.UsageError)) || errors.As(err, new(cli.ExitCode)) {
		return err
	}
	newLog(os.Stderr, o.LogFormat, slog.LevelInfo).Error(err.Error())
	return cli.ExitCode(1)
}

// Say tells people and launchers something on standard error, whatever the level of the log
// is: in a line, or if the log is for programs, in a record of it.
func (o *Flags) Say(text string) {
	if o.LogFormat == "json" {
		newLog(os.Stderr, o.LogFormat, slog.LevelInfo).Info(text)
		return
	}
	fmt.Fprintln(os.Stderr, text)
}

// Define defines the flags of a server that listens, or of one that does not.
func (o *Flags) Define(f *pflag.FlagSet, listens bool) {
	f.SortFlags = false
	f.StringVar(&o.config, configName, "", "read settings by the names of these flags from this TOML `file`; a flag of the command line counts instead of the file's")
	if o.listens = listens; listens {
		o.defineListening(f)
	}

	f.DurationVar(&o.detachedTTL, "detached-session-ttl", session.DefaultDetachedTTL, "keep a session and its processes for this `time` without a connection; 30 minutes, if that is more, when the client only fell silent, as a sleeping laptop does")
	f.StringVar(&o.detachedOutput, "detached-output", "block", "`policy` when a process without a connection has filled its retained output: block the process, or evict its oldest output")
	f.Int64Var(&o.retainedBytes, "retained-output-bytes", process.DefaultRetainedBytes, "retain up to this many `bytes` of output for each process")
	f.Int64Var(&o.retainedTotal, "retained-output-total", session.DefaultRetainedTotalBytes, "retain up to this many `bytes` of output for all processes together")

	f.IntVar(&o.MaxSessions, "max-sessions", session.DefaultMaxSessions, "largest `number` of sessions, including those without a connection")

	f.StringArrayVar(&o.without, "without", nil, "do without this `means` on Linux: keeper, a small parent process that ends everything the server started if the server is killed; "+
		"cgroups, the control groups that find, limit and kill the descendants of processes; may be repeated")

	f.StringArrayVar(&o.workspaceTexts, "workspace", nil, "make the directory `PATH`, or with PATH=DIRECTORY show the directory at PATH, for clients that name the directories of their own machine; may be repeated")

	f.StringVar(&o.Sandbox, "sandbox", "auto", "sandbox `mode`: auto enforces the sandbox that a client requests, or refuses the request; require also refuses commands without a sandbox; "+
		"off refuses every request for a sandbox, on a machine that is a sandbox itself; landlock uses Landlock alone and refuses what needs more")

	f.StringArrayVar(&o.sandboxSockets, "sandbox-socket", nil, "let sandboxed commands with a network use the unix socket at this `path`, or the sockets in this directory; may be repeated")

	f.StringVar(&o.AuditLog, "audit-log", "", "record what clients do in this `file`, one JSON object to a line; - for standard error")
	f.BoolVar(&o.AuditRequired, "audit-required", false, "refuse actions that cannot be recorded in the audit log")
	f.StringVar(&o.metricsListen, "metrics-listen", "", "serve metrics for Prometheus, and the probes, at this `address`, too: IP:PORT, where IP may be localhost; with the same TLS and authentication")
	o.record.define(f)
	f.StringVar(&o.LogLevel, "log-level", "warn", "`level` of the log on standard error: debug, info, warn or error")
	f.StringVar(&o.LogFormat, "log-format", "text", "`format` of the log: text or json")
}

// defineListening defines the flags about listening.
func (o *Flags) defineListening(f *pflag.FlagSet) {
	f.StringVar(&o.Listen, "listen", "ws://127.0.0.1:0", "listen at `URL`: ws://IP:PORT, wss://IP:PORT, unix:///PATH or stdio; IP may be localhost; port 0 picks a free port; systemd takes the sockets of a socket unit")
	o.DefineDoors(f)
	f.UintSliceVar(&o.peers.UIDs, "allow-uid", nil, "admit the user with this `number` to the unix socket, besides the server's own user and root; may be repeated")
	f.UintSliceVar(&o.peers.GIDs, "allow-gid", nil, "admit the members of the group with this `number` to the unix socket; may be repeated")
	for _, name := range []string{"allow-uid", "allow-gid"} {
		f.Lookup(name).DefValue = "" // or help would say (default [])
	}
	f.BoolVar(&o.Web, "web", false, "serve a page for browsers at /web of the WebSocket listener; exec-server web prints a link to it")
}

// complete checks what the flag library cannot.
func (o *Flags) complete(f *pflag.FlagSet) error {
	for _, name := range []string{"ws-auth", "ws-token-file", "ws-token-sha256", "tokens", "tls-cert", "tls-key", "tls-client-ca", "audit-log", configName} {
		// An unset variable in a script must not open the server.
		if flag := f.Lookup(name); flag != nil && flag.Changed && flag.Value.String() == "" {
			return fmt.Errorf("--%s needs a value", name)
		}
	}
	if err := o.CompleteDoors(); err != nil {
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
	for _, means := range o.without {
		if means != withoutKeeper && means != withoutCgroups {
			return cli.InvalidValue("without", means, "expected keeper or cgroups")
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

// newLog returns a log of the format "json", or of text.
func newLog(w io.Writer, format string, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
