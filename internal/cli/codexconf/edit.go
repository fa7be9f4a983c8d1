package codexconf

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"execserver/client/environments"
	"execserver/internal/cli"
)

// addOptions are the flags of codex-config add.
type addOptions struct {
	ssh, url, tokenFile        string
	byDefault, replace, dryRun bool
}

func newAddCommand() *cobra.Command {
	var o addOptions
	command := &cobra.Command{
		Use:   "add NAME {--ssh HOST | --url URL | -- PROGRAM [ARG...]}",
		Short: "Add a machine to Codex's configuration",
		Long: "add writes an entry into Codex's environments.toml, which is in ~/.codex or in $CODEX_HOME. With\n" +
			"--ssh, Codex reaches the machine by \"exec-server connect ssh\". --url is the URL of a server that\n" +
			"listens. PROGRAM speaks the protocol on its standard input and output.\n\n" +
			"add prints on standard error which lines it added and removed, and changes nothing else. If it\n" +
			"cannot edit the file line by line, it leaves the file alone. It does not connect, and prints the\n" +
			"command that tests the machine.\n\n" +
			"add sets include_local = false. Otherwise Codex silently runs commands on this machine when it cannot\n" +
			"reach the other one. With include_local = false Codex needs a default, so the first machine becomes\n" +
			"the default. With several machines in one file, Codex may use another one than the default.",
		Example: "  exec-server codex-config add box --ssh me@box.example\n" +
			"  exec-server codex-config add box --url wss://box.example:8765 --token-file token --replace\n" +
			"  exec-server codex-config add build --default -- exec-server connect docker build",
		RunE: func(command *cobra.Command, args []string) error { return o.run(command, args) },
	}
	f := command.Flags()
	f.StringVar(&o.ssh, "ssh", "", "reach the machine with ssh, by this `HOST`: one of ~/.ssh/config, USER@HOST or ssh://USER@HOST:PORT")
	f.StringVar(&o.url, "url", "", "reach the server at this `URL`: ws://HOST:PORT or wss://HOST:PORT")
	f.StringVar(&o.tokenFile, "token-file", "", "copy the bearer token for --url from this `FILE` into the entry")
	f.BoolVar(&o.byDefault, "default", false, "make this machine the default")
	f.BoolVar(&o.replace, "replace", false, "replace the entry of this name, if there is one")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the lines, and write nothing")
	return command
}

func newRemoveCommand() *cobra.Command {
	var dryRun bool
	command := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a machine from Codex's configuration",
		Long: "remove removes an entry from Codex's environments.toml. It prints the removed lines on standard\n" +
			"error, and changes nothing else. If it cannot edit the file line by line, it leaves the file alone.\n" +
			"If the machine was the default, Codex has no machine until \"add --default\" chooses one. Without any\n" +
			"machine, remove also removes include_local = false, and Codex works on this machine again.",
		Example: "  exec-server codex-config remove box",
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.NewUsageError(errors.New("name one environment"), command)
			}
			f, err := readConfig()
			if err != nil {
				return err
			}
			if f.err == nil && !slices.Contains(f.ids(), args[0]) {
				return fmt.Errorf("there is no environment %q in %s%s", args[0], f.path, known(f.ids()))
			}
			f.remove(args[0])
			if f.want["default"] == args[0] {
				f.unset("default")
			}
			if f.err == nil && len(f.entries()) == 0 && f.want["include_local"] == false {
				f.uncomment(localComment) // or Codex would have no machine to work on
				f.unset("include_local")
			}
			return f.finish(command.ErrOrStderr(), dryRun)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			f, err := readConfig()
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return f.ids(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	command.Flags().BoolVar(&dryRun, "dry-run", false, "print the lines, and write nothing")
	return command
}

// known lists the existing names for an error.
func known(ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	return "; there are " + strings.Join(ids, ", ")
}

func (o *addOptions) run(command *cobra.Command, args []string) error {
	dash := command.ArgsLenAtDash()
	var program []string
	if dash >= 0 {
		args, program = args[:dash], args[dash:]
	}
	if len(args) != 1 || !environments.IsName(args[0]) {
		return cli.NewUsageError(errors.New("name the environment: letters, digits, - and _, at most 64, and neither local nor none"), command)
	}
	name := args[0]
	entry, err := o.entry(name, program)
	if err != nil {
		return cli.NewUsageError(err, command)
	}
	f, err := readConfig()
	if err != nil {
		return err
	}
	if slices.Contains(f.ids(), name) && !o.replace {
		return fmt.Errorf("%s has an environment %q already; --replace replaces it", f.path, name)
	}
	if f.want["include_local"] != false {
		f.set("include_local", "false", false, localComment)
	}
	if byDefault, ok := f.want["default"].(string); !ok || o.byDefault && byDefault != name {
		f.set("default", quoteTOML(name), name)
	} else if strings.TrimSpace(byDefault) == "local" {
		return fmt.Errorf("the default in %s is this machine, on which Codex would go on to run commands; "+
			"--default makes %s the default", f.path, name)
	}
	if err := f.add(name, entry); err != nil {
		return err
	}
	if err := f.finish(command.ErrOrStderr(), o.dryRun); err != nil || o.dryRun {
		return err
	}
	if os.Getenv("CODEX_EXEC_SERVER_URL") != "" {
		fmt.Fprintln(command.ErrOrStderr(), "warning: Codex ignores CODEX_EXEC_SERVER_URL, because this file exists")
	}
	if version := OldVersion(command.Context()); version != "" {
		fmt.Fprintf(command.ErrOrStderr(), "warning: the codex in PATH is %s, which ignores environments.toml or refuses it; install %s or newer\n", version, FirstVersion)
	}
	if others := slices.DeleteFunc(f.ids(), func(id string) bool { return id == name }); len(others) > 0 {
		fmt.Fprintf(command.ErrOrStderr(), "warning: when Codex cannot reach its default machine, it uses another one of this file (%s); %s\n",
			strings.Join(append(others, name), ", "), OneFileEach)
	}
	fmt.Fprintln(command.ErrOrStderr(), "try it with:")
	_, err = fmt.Fprintf(command.OutOrStdout(), "exec-server run --on %s -- hostname\n", name)
	return err
}

// entry returns the text of the entry.
func (o *addOptions) entry(name string, program []string) (string, error) {
	ways := 0
	for _, given := range []bool{o.ssh != "", o.url != "", len(program) > 0} {
		if given {
			ways++
		}
	}
	switch {
	case ways != 1:
		return "", errors.New("name one way to reach the machine: --ssh HOST, --url URL, or -- and a program")
	case o.url == "" && o.tokenFile != "":
		return "", errors.New("--token-file is for --url")
	case o.url != "":
		if scheme, _, _ := strings.Cut(o.url, "://"); scheme != "ws" && scheme != "wss" && scheme != "unix" {
			return "", cli.InvalidValue("url", cli.WithoutSecrets(o.url), "expected ws://HOST:PORT or wss://HOST:PORT")
		}
		return (&options{id: name, tokenFile: o.tokenFile}).entry(o.url)
	case o.ssh != "":
		if cli.IsServerURL(o.ssh) {
			return "", fmt.Errorf("%q is the URL of a server; use --url", cli.WithoutSecrets(o.ssh))
		}
		if err := checkDestination(o.ssh); err != nil {
			return "", err
		}
		self, err := nameOfThisProgram()
		if err != nil {
			return "", err
		}
		program = []string{self, "connect", "ssh", o.ssh}
	}
	return programEntry(name, program), nil
}

// programEntry returns the text of an entry with a program.
func programEntry(id string, program []string) string {
	args := make([]string, len(program)-1)
	for i, arg := range program[1:] {
		args[i] = quoteTOML(arg)
	}
	text := "[[environments]]\nid = " + quoteTOML(id) + "\nprogram = " + quoteTOML(program[0]) + "\n"
	if len(args) > 0 {
		text += "args = [" + strings.Join(args, ", ") + "]\n"
	}
	return text
}

// nameOfThisProgram returns the name of this program in PATH, or its path.
func nameOfThisProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the path of this program: %w", err)
	}
	const name = "exec-server"
	found, err := exec.LookPath(name)
	if err != nil {
		return self, nil
	}
	there, err1 := os.Stat(found)
	here, err2 := os.Stat(self)
	if err1 == nil && err2 == nil && os.SameFile(there, here) {
		return name, nil
	}
	return self, nil
}

// OneFileEach is the remedy against the use of another machine by mistake.
const OneFileEach = "use a CODEX_HOME for each machine (docs/codex.md, \"Several machines\")"

// FirstVersion is the first version of Codex that accepts include_local in environments.toml. From
// 0.131 Codex refuses a file with a setting that it does not know; before, it ignores the file.
const FirstVersion = "0.133.0"

// codexTimeout bounds the call of codex.
const codexTimeout = 10 * time.Second

// OldVersion returns the version of the codex in PATH if it is too old for environments.toml, and
// otherwise "".
func OldVersion(ctx context.Context) string {
	path, err := exec.LookPath("codex")
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, codexTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, path, "--version")
	command.WaitDelay = time.Second // for its children
	out, err := command.Output()
	found := regexp.MustCompile(`\b(\d{1,4})\.(\d{1,4})\.\d{1,4}\b`).FindSubmatch(out)
	if err != nil || found == nil {
		return ""
	}
	major, _ := strconv.Atoi(string(found[1]))
	minor, _ := strconv.Atoi(string(found[2]))
	if major > 0 || minor >= 133 {
		return ""
	}
	return string(found[0])
}
