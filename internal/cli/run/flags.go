package run

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/client"
	"execserver/internal/cli"
	"execserver/internal/cli/term"
)

// runOptions are the flags of run.
type runOptions struct {
	machine cli.Machine

	tty        bool
	interact   bool
	escapeChar string

	detach  bool
	keeping keeping
	keep    bool // --keep was given

	variables []string
	directory string
	timeout   time.Duration

	sandbox    string
	allowWrite []string
	network    bool

	memory, maxOutput bytesFlag
	cpus              float64
	pids              int64

	escape int // of escapeChar
}

func (o *runOptions) addFlags(f *pflag.FlagSet) {
	f.SetInterspersed(false) // flags after the program belong to it
	o.machine.AddFlags(f)
	f.BoolVarP(&o.tty, "tty", "t", false, "run the command on a terminal")
	term.AddEscapeFlag(f, &o.escapeChar)
	f.StringArrayVarP(&o.variables, "env", "e", nil, "set an environment variable of the command: `KEY=VALUE`, or KEY for its local value; may be repeated")
	f.StringVarP(&o.directory, "workdir", "w", "", "run the command in this `DIR` of the machine")
	f.DurationVar(&o.timeout, "timeout", 0, "end the command after this `TIME`, such as 90s or 10m")
	f.BoolVarP(&o.detach, "detach", "d", false, "start the command, print the name of its session, and exit; attach returns to it; needs a server that listens")
	f.BoolVarP(&o.interact, "interactive", "i", false, "with -d: leave the standard input of the command open for attach")
	o.keeping.addFlags(f, "with -d, when you detach, or when background processes remain")
	f.StringVar(&o.sandbox, "sandbox", "", "run the command in a sandbox without network, in this `MODE`: read-only, or workspace-write, which lets it write its directory, /tmp and TMPDIR")
	f.StringArrayVar(&o.allowWrite, "allow-write", nil, "with --sandbox: also let the command write this `DIR`; may be repeated")
	f.BoolVar(&o.network, "network", false, "with --sandbox: let the command use the network")
	f.Var(&o.memory, "memory", "limit the memory of the command to `SIZE`, such as 512m or 2g")
	f.Float64Var(&o.cpus, "cpus", 0, "limit the processors of the command to this `NUMBER`, such as 0.5")
	f.Int64Var(&o.pids, "pids", 0, "limit the processes and threads of the command to this `NUMBER`")
	f.Var(&o.maxOutput, "max-output", "kill the command after this `SIZE` of output, such as 100m")
}

// check refuses flags that contradict each other.
func (o *runOptions) check(command *cobra.Command) (err error) {
	if err := o.machine.Check(command); err != nil {
		return err
	}
	set := command.Flags().Changed
	o.keep = set("keep")
	o.escape, err = term.ParseEscape(o.escapeChar)
	switch {
	case err != nil:
		return cli.NewUsageError(fmt.Errorf("--escape-char: %w", err), command)
	case (o.detach || o.keep) && o.machine.On == cli.ThisMachine:
		err = errors.New("-d and --keep need a server that keeps the command running; name one with --on or --url")
	case set("name") && !o.detach && !o.tty && !set("keep"):
		err = errors.New("--name is for -d, -t and --keep")
	case o.keeping.time <= 0:
		err = errors.New("--keep must be greater than 0")
	case set("name"):
		err = checkSessionName(o.keeping.name)
	}
	switch {
	case err != nil:
	case set("workdir") && o.directory == "":
		err = errors.New("--workdir is empty; give it a value, or leave it out")
	case o.timeout < 0 || o.cpus < 0 || o.pids < 0:
		err = errors.New("a limit cannot be negative")
	case o.sandbox == "" && (len(o.allowWrite) > 0 || o.network):
		err = errors.New("--allow-write and --network are for --sandbox")
	case set("sandbox") && o.sandbox != "read-only" && o.sandbox != "workspace-write":
		err = cli.InvalidValue("sandbox", o.sandbox, "expected read-only or workspace-write")
	default:
		err = o.setVariables()
	}
	if err != nil {
		return cli.NewUsageError(err, command)
	}
	return nil
}

// configure sets up the command, without its input and output.
func (o *runOptions) configure(c *client.Cmd) {
	c.Dir = o.directory
	c.Limits = client.Limits{
		Timeout: o.timeout, MaxOutputBytes: int64(o.maxOutput), MemoryBytes: int64(o.memory), Pids: o.pids, CPUs: o.cpus,
	}
	if o.sandbox != "" {
		c.Sandbox = &client.Sandbox{Workspace: o.sandbox == "workspace-write", Write: o.allowWrite, Network: o.network}
	}
	if len(o.variables) == 0 {
		return
	}
	c.EnvPolicy = client.InheritAll()
	if path.IsAbs(o.directory) {
		c.Env = append(c.Env, "PWD="+o.directory)
	}
	c.Env = append(c.Env, o.variables...)
}

// setVariables completes variables without a value from the environment of this program.
func (o *runOptions) setVariables() error {
	for i, variable := range o.variables {
		name, _, given := strings.Cut(variable, "=")
		value, here := os.LookupEnv(name)
		switch {
		case name == "":
			return fmt.Errorf("-e %q has no name; give KEY=VALUE", variable)
		case given:
		case here:
			o.variables[i] = name + "=" + value
		default:
			return fmt.Errorf("-e %s: there is no such variable here; give KEY=VALUE", name)
		}
	}
	return nil
}

// bytesFlag is a flag for a number of bytes.
type bytesFlag int64

func (b *bytesFlag) String() string { return strconv.FormatInt(int64(*b), 10) }

func (b *bytesFlag) Type() string { return "size" }

func (b *bytesFlag) Set(text string) error {
	units := map[byte]int64{'k': 1 << 10, 'm': 1 << 20, 'g': 1 << 30, 't': 1 << 40}
	number, unit := strings.ToLower(text), int64(1)
	if number != "" && units[number[len(number)-1]] != 0 {
		number, unit = number[:len(number)-1], units[number[len(number)-1]]
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64/unit {
		return errors.New("expected a number of bytes, or one with k, m, g or t")
	}
	*b = bytesFlag(n * unit)
	return nil
}
