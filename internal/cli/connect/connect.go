// Package connect implements the commands that make a machine reachable: connect, which starts a server
// on it over any remote shell, and forward, which forwards ports to it.
package connect

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"execserver/internal/cli"
	"execserver/internal/cli/connect/bootstrap"
	"execserver/internal/cli/serve"
)

// connecting holds the flags and arguments of connect.
type connecting struct {
	version   string // of this program
	remoteDir string
	release   string
	listen    string
	confined  bool // confined processes may connect to listen
	serve     []string
	shown     []string // values of --workspace
	ephemeral bool     // the server ends with the connection
	upgrade   bool     // end a server of another program first

	name  string   // the arguments, for messages
	words []string // the command that starts a shell on the other machine
	typed bool     // the command reads shell commands from standard input
	isSSH bool

	notes notes
}

// shellCommand is a known kind of command that starts a shell on another machine.
type shellCommand struct {
	machine string // what its first argument names
	words   func(args []string) []string
}

// shellCommands are keyed by the first word after connect. Each command takes the command line
// for the shell as one more argument.
var shellCommands = map[string]shellCommand{
	"ssh":    {"HOST", sshCommand},
	"docker": {"CONTAINER", func(args []string) []string { return slices.Concat([]string{"docker", "exec", "-i"}, args, shell) }},
	"podman": {"CONTAINER", func(args []string) []string { return slices.Concat([]string{"podman", "exec", "-i"}, args, shell) }},
	"kubectl": {"POD", func(args []string) []string {
		return slices.Concat([]string{"kubectl", "exec", "-i"}, args, []string{"--"}, shell)
	}},
}

// shell replaces the login shell, which only ssh starts.
var shell = []string{"sh", "-c"}

func sshCommand(args []string) []string {
	// Override settings of the host for interactive use.
	words := []string{"ssh", "-T", "-o", "RemoteCommand=none"}
	// ssh would prompt on the terminal, which belongs to the client. Users can override this.
	if !slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(strings.ToLower(arg), "batchmode") }) {
		words = append(words, "-o", "BatchMode=yes")
	}
	return append(words, args...)
}

const shellNames = "ssh, docker, podman, kubectl, or -- and a command"

// Command returns the command connect. version is that of this program.
func Command(version string) *cobra.Command {
	c := connecting{version: version}
	command := &cobra.Command{
		Use:     "connect [flags] ssh|docker|podman|kubectl ARGUMENT... | -- COMMAND...",
		Short:   "Start a server on another machine, and copy this program there if it is missing",
		GroupID: cli.GroupWork,
		Long: "connect starts a server on the other machine, unless one runs, and connects it to standard input and\n" +
			"output. It is the program of an entry in environments.toml; without </dev/null it waits for a client.\n\n" +
			"The server and its commands survive a broken connection: connect starts the command again until the\n" +
			"server answers, for up to 30 minutes. All your clients share the server. It ends when nobody has used\n" +
			"it for 30 minutes. Its files, with its log, are in ~/.cache/exec-server/run there. With --ephemeral\n" +
			"each client has a server of its own, which ends with the connection.\n\n" +
			"The other machine needs no installation. connect copies this program to ~/.cache/exec-server there,\n" +
			"unless a copy exists, and then removes copies that were not started for 30 days.\n\n" +
			"  ssh [OPTION]... HOST                 connect by ssh, which never prompts (BatchMode=yes)\n" +
			"  docker [OPTION]... CONTAINER         connect by docker exec; podman is the same\n" +
			"  kubectl POD [-n NAMESPACE] [-c NAME] connect by kubectl exec\n" +
			"  -- COMMAND...                        connect by any command that runs a shell on the machine\n\n" +
			"For another system or architecture, connect needs exec-server-OS-ARCH, which \"make release\" builds.\n" +
			"It looks in --release, in $EXEC_SERVER_RELEASE, next to this program, in ../lib/exec-server relative\n" +
			"to it, and in ~/.local/share/exec-server.\n\n" +
			"Codex sends the path of the directory in which you start it. --workspace makes that path exist on the\n" +
			"other machine. git, rsync or \"exec-server cp\" copy files to it and from it.\n\n" +
			"With --listen, connect listens on this machine, and connects each client to the server. It is for\n" +
			"clients that cannot start a program, such as Codex before 0.131.",
		Example: "  exec-server connect ssh box </dev/null        # copies exec-server to the box, and tests it\n" +
			"  exec-server connect ssh -p 2222 me@box.example </dev/null\n" +
			"  exec-server connect --workspace /home/me/project=~/work ssh box\n" +
			"  exec-server connect kubectl web-0 -n shop -c app\n" +
			"  exec-server connect --listen ws://127.0.0.1:8765 ssh box\n" +
			"  exec-server connect -- ssh box sudo -u builder sh",
		ValidArgsFunction: completeShells,
		Args:              c.parse,
		RunE: func(command *cobra.Command, _ []string) error {
			return c.run(command)
		},
	}
	f := command.Flags()
	f.SetInterspersed(false) // ssh and the others have flags of their own
	cli.AddListenFlag(f, &c.listen, "", "serve clients at this `URL` of this machine, ws://127.0.0.1:PORT or unix:///PATH, instead of standard input")
	serve.DefineAllowConfined(f, &c.confined)
	f.StringVar(&c.remoteDir, "remote-dir", "", "keep the program in this `DIR` of the other machine, absolute or below ~/ (default: the user's cache directory)")
	f.BoolVar(&c.ephemeral, "ephemeral", false, "start a server that serves only this client, and ends with the connection")
	f.BoolVar(&c.upgrade, "upgrade", false, "end the running server, with everything that it runs, if it was started from another program than this one")
	f.StringVar(&c.release, "release", "", "look first in this `DIR` for the programs for other systems and architectures")
	f.StringArrayVar(&c.serve, "serve-flag", nil, "start the server with this `FLAG` of exec-server serve, such as --serve-flag=--sandbox=require; may be repeated")
	f.StringArrayVar(&c.shown, "workspace", nil, "create `DIR` on the other machine; DIR=REMOTE bind-mounts REMOTE there, which may begin with ~/; may be repeated")
	return command
}

func completeShells(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []cobra.Completion{"ssh", "docker", "podman", "kubectl"}, cobra.ShellCompDirectiveNoFileComp
}

// parse parses the words after the flags.
func (c *connecting) parse(command *cobra.Command, args []string) error {
	invalid := func(format string, values ...any) error {
		return cli.NewUsageError(fmt.Errorf(format, values...), command)
	}
	for _, name := range []string{"listen", "remote-dir", "release"} {
		// An unset variable in a script must not mean the default.
		if flag := command.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
			return invalid("--%s is empty; give it a value, or leave it out", name)
		}
	}
	if c.remoteDir != "" && c.remoteDir[0] != '/' && !strings.HasPrefix(c.remoteDir, "~/") {
		return cli.NewUsageError(cli.InvalidValue("remote-dir", c.remoteDir, "expected an absolute path, or one that begins with ~/"), command)
	}
	if c.ephemeral && c.upgrade {
		return invalid("--ephemeral and --upgrade exclude each other")
	}
	for _, flag := range c.serve {
		// connect must find the server.
		if name, _, _ := strings.Cut(flag, "="); slices.Contains([]string{"--listen", "--run-directory", "--idle-exit"}, name) {
			return cli.NewUsageError(cli.InvalidValue("serve-flag", flag, "connect sets this flag"), command)
		}
	}
	for _, text := range c.shown {
		dir, remote, mapped := strings.Cut(text, "=")
		if dir == "" || mapped && remote == "" {
			return cli.NewUsageError(cli.InvalidValue("workspace", text, "expected DIR or DIR=REMOTE"), command)
		}
		dir, err := filepath.Abs(dir)
		if err != nil {
			return err
		}
		flag := "--workspace=" + dir
		if mapped {
			flag += "=" + remote
		}
		c.serve = append(c.serve, flag)
	}
	if len(args) == 0 {
		return invalid("name how to reach the machine: %s", shellNames)
	}
	c.name = strings.Join(args, " ")
	if c.typed = command.ArgsLenAtDash() == 0; c.typed {
		c.words = args
		return nil
	}
	by, known := shellCommands[args[0]]
	switch {
	case !known:
		return invalid("unknown connection %q; expected %s", args[0], shellNames)
	case len(args) == 1:
		return invalid("name the machine, as in: connect %s %s", args[0], by.machine)
	case slices.Contains(args, ""):
		return invalid("an argument of %s is empty; name it, or leave it out", args[0])
	}
	c.words, c.isSSH = by.words(args[1:]), args[0] == "ssh"
	return nil
}

// run starts the server, and relays between it and the clients.
func (c *connecting) run(command *cobra.Command) error {
	cli.IgnoreBrokenPipes()
	ctx, stop := cli.UntilSignal()
	defer stop()
	var err error
	if c.listen != "" {
		err = c.serveClients(ctx)
	} else {
		err = c.pass(ctx, command.InOrStdin(), command.OutOrStdout())
	}
	if s, signaled := errors.AsType[cli.SignalError](context.Cause(ctx)); signaled {
		return cli.ExitCode(cli.Signaled + int(s.Signal))
	}
	return err
}

// silence is how long connect waits for a first answer before it prints a notice.
const silence = 5 * time.Second

// open connects to a server on the other machine, which it starts if necessary. It reports the
// progress of an upload to report, unless that is nil.
func (c *connecting) open(ctx context.Context, report func(arrived, size int64)) (far, error) {
	if c.ephemeral {
		return c.startServer(ctx, report)
	}
	return c.openLasting(ctx, report)
}

// startServer starts a server on the other machine that ends with the connection.
func (c *connecting) startServer(ctx context.Context, report func(arrived, size int64)) (*bootstrap.Session, error) {
	return c.start(ctx, append([]string{"serve", "--listen", "stdio"}, c.serve...), remoteStderr(), report)
}

// start starts this program with args on the other machine.
func (c *connecting) start(ctx context.Context, args []string, stderr io.Writer, report func(arrived, size int64)) (*bootstrap.Session, error) {
	command := exec.Command(c.words[0], c.words[1:]...)
	command.Stderr = stderr
	if !c.ephemeral && !mayAsk() {
		// A signal for the group of this program, such as that of client.Launch, would end ssh before it
		// could tell the server.
		detach(command)
	}
	upload := &uploadNotice{to: c.name}
	session, err := bootstrap.Start(ctx, command, &bootstrap.Options{
		Releases: c.releases(), Version: c.version, Dir: c.remoteDir, Typed: c.typed,
		Progress: func(kind bootstrap.Kind, arrived, size int64) {
			upload.show(kind, arrived, size)
			if report != nil {
				report(arrived, size)
			}
		},
		Silence: silence, Silent: func() {
			fmt.Fprintf(os.Stderr, "no shell has answered over %s for %s; still waiting (a startup file that reads standard input, "+
				"or starts another shell, can cause this)\n", cli.Printable(c.name), silence)
		},
		Args: args,
	})
	upload.clear()
	if err != nil && ctx.Err() == nil {
		err = c.explain(err)
	}
	return session, err
}

// releases returns the directories that may have programs for other kinds of machines.
func (c *connecting) releases() (directories []string) {
	directories = serve.Given(directories, c.release, os.Getenv("EXEC_SERVER_RELEASE"))
	if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		dir := filepath.Dir(self)
		directories = append(directories, dir, filepath.Join(dir, "..", "lib", "exec-server"))
	}
	return append(directories, ownRelease())
}

// ownRelease returns the user's directory for programs for other kinds of machines.
func ownRelease() string {
	home, _ := os.UserHomeDir() // without a home, the path does not exist
	return filepath.Join(cmp.Or(os.Getenv("XDG_DATA_HOME"), filepath.Join(home, ".local", "share")), "exec-server")
}

// pass relays between standard input and output and the server until either side ends.
func (c *connecting) pass(ctx context.Context, in io.Reader, out io.Writer) error {
	var asked atomic.Bool // the client has sent its first bytes
	opened := make(chan far, 1)
	go func() { // ends with the program
		first := bufio.NewReader(in)
		if _, err := first.Peek(1); err == nil {
			asked.Store(true)
		}
		server := <-opened
		_, _ = copyBytes(server, first)
		_ = server.CloseWrite()
	}()
	server, err := c.open(ctx, initializeProgress(&asked, out))
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, server.End)()
	opened <- server
	said, err := copyBytes(out, server)
	l, lasts := server.(*lasting)
	unasked := lasts && err == nil && ctx.Err() == nil && !l.isEnding() // the server was told to end
	server.End()
	if errors.Is(err, syscall.EPIPE) {
		return cli.ExitCode(cli.Signaled + int(syscall.SIGPIPE))
	}
	switch {
	case unasked:
		return &cli.Failure{Text: fmt.Sprintf("connect by %s: the server on the other machine has ended the connection", c.name), Code: 1}
	case lasts:
		return l.Err()
	}
	code := ended(server.(*bootstrap.Session).Wait())
	if said == 0 && code >= cli.ExitNotAllowed && ctx.Err() == nil {
		return c.unanswered(code)
	}
	return cli.ExitCode(code)
}

// unanswered returns the error for a command that ended before the program that it started has
// answered.
func (c *connecting) unanswered(code int) error {
	code = ended(code)
	return &cli.Failure{Text: fmt.Sprintf("connect by %s: the command started a server, and ended with the exit code %d before that answered; "+
		"if the program below %s there is damaged, remove it", c.name, code, cmp.Or(c.remoteDir, "~/.cache/exec-server")), Code: max(1, code)}
}

// ended converts the exit code of another program.
func ended(code int) int {
	if code < 0 { // a signal
		return 1
	}
	return code
}

// copyBytes copies in pieces as large as a pipe.
func copyBytes(to io.Writer, from io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 256<<10))
}

// explain adds advice to an error of Start.
func (c *connecting) explain(err error) error {
	failed, failing := errors.AsType[*bootstrap.Error](err)
	text := fmt.Sprintf("connect by %s: %s", c.name, err)
	switch ends, ending := errors.AsType[*bootstrap.EndedError](err); {
	case ending:
		return &cli.Failure{Text: text, Code: max(1, ended(ends.Code))}
	case errors.Is(err, exec.ErrNotFound):
		return &cli.Failure{Text: text + "; install it, or give its path after --", Code: cli.ExitNotFound}
	case failing:
		return errors.New(text + c.advise(failed))
	}
	return errors.New(text)
}

func (c *connecting) advise(err *bootstrap.Error) string {
	switch err.Kind {
	case bootstrap.NoHome, bootstrap.Unsafe, bootstrap.NoExec:
		return "; use another directory, which only its user can write, with --remote-dir DIR"
	case bootstrap.Store:
		return "; free some space and let this user write there, or use another directory with --remote-dir DIR"
	case bootstrap.Corrupt:
		return "; try again"
	case bootstrap.Tools:
		return "; install them there"
	case bootstrap.Noise:
		return "; its startup files must not write to standard output without a terminal"
	case bootstrap.Machine:
		if kind, ok := bootstrap.KindOf(err.Text); ok {
			return "; make one: " + makeProgram(kind.OS, kind.Arch)
		}
		return "; connect does not know this kind of machine, so build exec-server on it, and start exec-server serve --listen stdio"
	case bootstrap.Version, bootstrap.Mistaken:
		return "; make it again with \"make release\""
	}
	return ""
}

// makeProgram returns the command that builds a program where connect finds it.
func makeProgram(system, arch string) string {
	path := filepath.Join(ownRelease(), "exec-server-"+system+"-"+arch)
	return fmt.Sprintf("GOOS=%s GOARCH=%s CGO_ENABLED=0 go build -o %s ./cmd/exec-server", system, arch, cli.QuoteShell(path))
}
