// Command codex-demo shows a released Codex work on another machine. It needs no account: in
// place of the model there is a script, which has Codex run every prompt as a command.
//
//	go run ./examples/codex-demo                  # one prompt, and what comes of it
//	go run ./examples/codex-demo 'uname -a; ls /' # another one
//	go run ./examples/codex-demo -t               # Codex's terminal program, for your prompts
//
// It needs npm, with which scripts/install-codex installs Codex, once. On Linux the other
// machine is a namespace with the host name box and a root directory of its own. Where the
// system allows none, and on other systems, an ordinary process takes its place.
//
// When it ends, it leaves nothing behind but the installed Codex.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"execserver/internal/testkit/responses"
)

const (
	codexVersion = "0.171.0"
	firstPrompt  = "hostname; cat hello.txt"
	patience     = 2 * time.Minute // for one prompt; a person at the terminal has any time
)

func main() {
	initMachine()
	runtime.LockOSThread() // the box ends with the thread that starts it
	if err := run(os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "codex-demo:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("codex-demo", flag.ContinueOnError)
	terminal := flags.Bool("t", false, "start Codex's terminal program")
	if err := flags.Parse(args); err != nil {
		return err
	}
	prompt := strings.Join(flags.Args(), " ")
	if prompt == "" {
		prompt = firstPrompt
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()

	d, err := start(ctx, out)
	if err != nil {
		return err
	}
	defer d.close()
	if *terminal {
		fmt.Fprintln(out, "Each prompt is a command for the box. Try: hostname")
		return d.codexOnTerminal(ctx)
	}
	return d.codexOnce(ctx, prompt)
}

// A demo is a model, a server on the box, and the folders of Codex.
type demo struct {
	out      io.Writer
	root     string // holds all of its files
	project  string // where commands run: the path is the same here and on the box
	codex    string // programs
	server   string
	model    *responses.Server
	box      *box
	hostname string // of the machine on which the commands are to run
}

// start installs what is missing, and starts everything but Codex.
func start(ctx context.Context, out io.Writer) (_ *demo, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	cache = filepath.Join(cache, "exec-server-demo") // Codex wants a home outside of /tmp
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return nil, err
	}
	root, err := os.MkdirTemp(cache, "demo-")
	if err != nil {
		return nil, err
	}
	d := &demo{
		out: out, root: root, project: filepath.Join(root, "project"), server: filepath.Join(root, "exec-server"),
		model: responses.Start(asPrompted),
	}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	for _, folder := range []string{d.project, filepath.Join(root, "codex"), filepath.Join(root, "box")} {
		if err := os.Mkdir(folder, 0o700); err != nil {
			return nil, err
		}
	}
	if err := d.programs(ctx); err != nil {
		return nil, err
	}
	if d.box, err = d.startBox(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "box       exec-server at %s, on a machine with the host name %s\n", d.box.url, d.hostname)
	fmt.Fprintf(out, "model     a script at %s, no account needed\n", d.model.URL())
	return d, d.configure()
}

// programs builds the server, and finds or installs Codex.
func (d *demo) programs(ctx context.Context) error {
	build := exec.CommandContext(ctx, "go", "build", "-o", d.server, "execserver/cmd/exec-server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("cannot build exec-server: %w", err)
	}
	tree, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "execserver").Output()
	if err != nil {
		return fmt.Errorf("cannot find the source tree, run the program in it: %w", err)
	}
	install := exec.CommandContext(ctx, filepath.Join(strings.TrimSpace(string(tree)), "scripts", "install-codex"), codexVersion)
	install.Stderr = os.Stderr
	codex, err := install.Output()
	if err != nil {
		return fmt.Errorf("cannot install Codex %s: %w", codexVersion, err)
	}
	d.codex = strings.TrimSpace(string(codex))
	return nil
}

// configure writes what a user would write into ~/.codex, for a Codex with a home of its own.
func (d *demo) configure() error {
	environments := fmt.Sprintf(`default = "box"
include_local = false # Codex never runs a command here

[[environments]]
id = "box"
url = %q
`, d.box.url)
	if err := os.WriteFile(filepath.Join(d.root, "codex", "environments.toml"), []byte(environments), 0o600); err != nil {
		return err
	}
	config := d.model.CodexConfig() + fmt.Sprintf("\n[projects.%q]\ntrust_level = \"trusted\"\n", d.project)
	return os.WriteFile(filepath.Join(d.root, "codex", "config.toml"), []byte(config), 0o600)
}

// close ends the server and the model, and removes all files.
func (d *demo) close() {
	if d.box != nil {
		d.box.stop()
	}
	d.model.Close()
	if err := os.RemoveAll(d.root); err != nil {
		fmt.Fprintln(os.Stderr, "codex-demo:", err)
	}
}
