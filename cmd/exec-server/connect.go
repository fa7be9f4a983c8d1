package main

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

	"execserver/internal/bootstrap"
	"execserver/internal/cli"
	"execserver/internal/cli/serve"
)

// connecting has the flags of connect.
type connecting struct {
	remoteDir string
	release   string
	listen    string
	confined  bool // processes may connect to it
	serve     []string
	shown     []string // values of --workspace

	name  string   // of what leads there, in the person's words
	words []string // of the command that leads there
	typed bool     // it is any command, whose standard input is a shell
}

// route is a kind of command that leads to a machine.
type route struct {
	machine string // what a person has to name
	lead    func(args []string) []string
}

// routes are by the first word after connect. All take a command of a shell as one more
// argument.
var routes = map[string]route{
	"ssh":    {"HOST", leadBySSH},
	"docker": {"CONTAINER", func(args []string) []string { return slices.Concat([]string{"docker", "exec", "-i"}, args, shell) }},
	"podman": {"CONTAINER", func(args []string) []string { return slices.Concat([]string{"podman", "exec", "-i"}, args, shell) }},
	"kubectl": {"POD", func(args []string) []string {
		return slices.Concat([]string{"kubectl", "exec", "-i"}, args, []string{"--"}, shell)
	}},
}

// shell takes the place of the login shell that ssh starts.
var shell = []string{"sh", "-c"}

func leadBySSH(args []string) []string {
	// Settings of the host that are for people: no terminal, and no command but this one.
	words := []string{"ssh", "-T", "-o", "RemoteCommand=none"}
	// ssh would ask at the terminal, which belongs to the client. People who want that can
	// say so.
	if !slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(strings.ToLower(arg), "batchmode") }) {
		words = append(words, "-o", "BatchMode=yes")
	}
	return append(words, args...)
}

const wayNames = "ssh, docker, podman, kubectl, or -- and a command"

func newConnectCommand() *cobra.Command {
	var c connecting
	command := &cobra.Command{
		Use:     "connect [flags] ssh|docker|podman|kubectl ARGUMENT... | -- COMMAND...",
		Short:   "Start a server on another machine, and copy it there first if it is missing",
		GroupID: cli.GroupWork,
		Long: "connect starts a server on another machine and passes its standard input and output on, so that it\n" +
			"can be the program of an entry in environments.toml. Nothing has to be installed there. connect looks\n" +
			"below ~/.cache/exec-server on that machine for this program, by its digest. If it is missing, connect\n" +
			"copies it there over the same connection. What was not started for 30 days is removed then.\n\n" +
			"  ssh [OPTION]... HOST                 leads there by ssh, which asks nothing (BatchMode=yes)\n" +
			"  docker [OPTION]... CONTAINER         by docker exec; podman is the same\n" +
			"  kubectl POD [-n NAMESPACE] [-c NAME] by kubectl exec\n" +
			"  -- COMMAND...                        by any command whose input and output are a shell there\n\n" +
			"The program for another kind of machine is a file exec-server-OS-ARCH, as \"make release\" makes them:\n" +
			"in $EXEC_SERVER_RELEASE, next to this program, in ../lib/exec-server beside its directory, or in\n" +
			"~/.local/share/exec-server.\n\n" +
			"Codex names the directory in which it was started. With --workspace that directory exists there, too;\n" +
			"git, rsync or \"exec-server cp\" bring files there and back.\n\n" +
			"With --listen, connect serves clients that cannot start a program. Each gets a server of its own.",
		Example: "  exec-server connect ssh box </dev/null        # copies it there, and tries it\n" +
			"  exec-server connect ssh -p 2222 me@box.example\n" +
			"  exec-server connect --workspace ~/project=~/project ssh box\n" +
			"  exec-server connect kubectl web-0 -n shop -c app\n" +
			"  exec-server connect --listen ws://127.0.0.1:8765 ssh box\n" +
			"  exec-server connect -- ssh box sudo -u builder sh",
		ValidArgsFunction: completeWays,
		Args:              c.parse,
		RunE: func(command *cobra.Command, _ []string) error {
			return c.run(command)
		},
	}
	f := command.Flags()
	f.SortFlags = false
	f.SetInterspersed(false) // the words after the way are its own
	f.StringVar(&c.listen, "listen", "", "serve clients at this `URL` of this machine, ws://127.0.0.1:PORT or unix:///PATH, instead of standard input")
	serve.DefineAllowConfined(f, &c.confined)
	f.StringVar(&c.remoteDir, "remote-dir", "", "keep the program in this `DIR` of the other machine, an absolute path or one below ~/; by default in the user's cache directory")
	f.StringVar(&c.release, "release", "", "look in this `DIR` first for the programs for other kinds of machines")
	f.StringArrayVar(&c.serve, "serve-flag", nil, "start the server with this `FLAG` of exec-server serve, such as --serve-flag=--sandbox=require; may be repeated")
	f.StringArrayVar(&c.shown, "workspace", nil, "make the directory `DIR` of this machine there, with the same path, or show REMOTE there at this path with DIR=REMOTE; REMOTE may begin with ~/; may be repeated")
	f.BoolP("help", "h", false, "print this text")
	return command
}

func completeWays(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return []cobra.Completion{"ssh", "docker", "podman", "kubectl"}, cobra.ShellCompDirectiveNoFileComp
}

// parse takes the words after the flags.
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
		return invalid("say what leads to the machine: %s", wayNames)
	}
	c.name = strings.Join(args, " ")
	if c.typed = command.ArgsLenAtDash() == 0; c.typed {
		c.words = args
		return nil
	}
	by, known := routes[args[0]]
	switch {
	case !known:
		return invalid("unknown way %q; expected %s", args[0], wayNames)
	case len(args) == 1:
		return invalid("name the machine, as in: connect %s %s", args[0], by.machine)
	case slices.Contains(args, ""):
		return invalid("an argument of %s is empty; name it, or leave it out", args[0])
	}
	c.words = by.lead(args[1:])
	return nil
}

// run starts the server, and passes on what clients and it say to each other.
func (c *connecting) run(command *cobra.Command) error {
	serve.IgnoreBrokenPipes()
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

// start starts the server on the other machine. If tell is not nil, it is called with the
// progress of the copy of the program.
func (c *connecting) start(ctx context.Context, tell func(arrived, size int64)) (*bootstrap.Session, error) {
	way := exec.Command(c.words[0], c.words[1:]...)
	way.Stderr = stderrOfOthers()
	upload := &uploadNotice{to: c.name}
	session, err := bootstrap.Start(ctx, way, &bootstrap.Options{
		Releases: c.releases(), Version: buildVersion(), Dir: c.remoteDir, Typed: c.typed,
		Progress: func(kind bootstrap.Kind, arrived, size int64) {
			upload.show(kind, arrived, size)
			if tell != nil {
				tell(arrived, size)
			}
		},
		Silence: silence, Silent: func() {
			fmt.Fprintf(os.Stderr, "no shell has answered by %s for %s; still waiting (a startup file there that reads standard input, "+
				"or starts another shell, also looks so)\n", cli.Printable(c.name), silence)
		},
		Args: append([]string{"serve", "--listen", "stdio"}, c.serve...),
	})
	upload.clear()
	if err != nil && ctx.Err() == nil {
		err = c.explain(err)
	}
	return session, err
}

// releases are the directories that may have programs for other kinds of machines.
func (c *connecting) releases() (directories []string) {
	directories = serve.Given(directories, c.release, os.Getenv("EXEC_SERVER_RELEASE"))
	if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		beside := filepath.Dir(self)
		directories = append(directories, beside, filepath.Join(beside, "..", "lib", "exec-server"))
	}
	return append(directories, ownRelease())
}

// ownRelease is the user's directory for programs for other kinds of machines.
func ownRelease() string {
	home, _ := os.UserHomeDir() // without one, the path leads nowhere
	return filepath.Join(cmp.Or(os.Getenv("XDG_DATA_HOME"), filepath.Join(home, ".local", "share")), "exec-server")
}

// pass connects standard input and output with the server until either side ends.
func (c *connecting) pass(ctx context.Context, in io.Reader, out io.Writer) error {
	var asked atomic.Bool // a client has sent something
	started := make(chan *bootstrap.Session, 1)
	go func() { // ends with the program
		first := bufio.NewReader(in)
		if _, err := first.Peek(1); err == nil {
			asked.Store(true)
		}
		session := <-started
		_, _ = copyBytes(session, first)
		_ = session.CloseWrite()
	}()
	session, err := c.start(ctx, initializeProgress(&asked, out))
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, session.End)()
	started <- session
	said, err := copyBytes(out, session)
	session.End()
	if errors.Is(err, syscall.EPIPE) {
		return cli.ExitCode(cli.Signaled + int(syscall.SIGPIPE))
	}
	code := ended(session.Wait())
	if said == 0 && code >= exitNotAllowed && ctx.Err() == nil {
		return &runFailure{fmt.Sprintf("connect by %s: the command started a server, and ended with the exit code %d before that answered; "+
			"if the program below %s there is damaged, remove it", c.name, code, cmp.Or(c.remoteDir, "~/.cache/exec-server")), code}
	}
	return cli.ExitCode(code)
}

// ended returns the exit code for that of another program.
func ended(code int) int {
	if code < 0 { // a signal
		return 1
	}
	return code
}

// copyBytes copies in pieces as large as the pipes hold.
func copyBytes(to io.Writer, from io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 256<<10))
}

// explain says what to do about an error of Start.
func (c *connecting) explain(err error) error {
	failed, failing := errors.AsType[*bootstrap.Error](err)
	text := fmt.Sprintf("connect by %s: %s", c.name, err)
	switch ends, ending := errors.AsType[*bootstrap.EndedError](err); {
	case ending:
		return &runFailure{text, max(1, ended(ends.Code))}
	case errors.Is(err, exec.ErrNotFound):
		return &runFailure{text + "; install it, or give its path after --", exitNotFound}
	case failing:
		return errors.New(text + c.advise(failed))
	}
	return errors.New(text)
}

func (c *connecting) advise(err *bootstrap.Error) string {
	switch err.Kind {
	case bootstrap.NoHome, bootstrap.Unsafe, bootstrap.NoExec:
		return "; --remote-dir DIR keeps it in another directory, which nobody else can write"
	case bootstrap.Store:
		return "; make room for it and let this user write there, or keep it elsewhere with --remote-dir DIR"
	case bootstrap.Corrupt:
		return "; try again"
	case bootstrap.Tools:
		return "; install them there"
	case bootstrap.Noise:
		return "; its start files must not write to standard output when nobody is at a terminal"
	case bootstrap.Machine:
		if kind, ok := bootstrap.KindOf(err.Text); ok {
			return "; make one: " + makeProgram(kind.OS, kind.Arch)
		}
		return "; connect knows no such machine, so build it there, and start it with exec-server serve --listen stdio"
	case bootstrap.Version, bootstrap.Mistaken:
		return "; make it again with \"make release\""
	}
	return ""
}

// makeProgram returns the command that makes a program where connect finds it.
func makeProgram(system, arch string) string {
	path := filepath.Join(ownRelease(), "exec-server-"+system+"-"+arch)
	return fmt.Sprintf("GOOS=%s GOARCH=%s CGO_ENABLED=0 go build -o %s ./cmd/exec-server", system, arch, cli.QuoteShell(path))
}
