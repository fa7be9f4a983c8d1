// Package doctor implements the command doctor, which examines everything between this program and a
// server.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/client/environments"
	"execserver/client/local"
	"execserver/internal/cli"
)

// Command returns the command doctor. version is that of this program.
func Command(version string) *cobra.Command {
	var m cli.Machine
	var json, all bool
	command := &cobra.Command{
		Use:        "doctor [flags]",
		Short:      "Find problems between this machine and a server",
		GroupID:    cli.GroupSetUp,
		SuggestFor: []string{"diagnose", "check", "ping", "test", "machines", "environments", "hosts"},
		Long: "doctor checks each step between this program and a server: the name, the host, TCP, TLS, the token,\n" +
			"the handshake and the versions. Then it checks the sandbox, the directory, the clock, the disk and\n" +
			"the limits of the machine.\n\n" +
			"It prints a line for each check: ok, warning or problem, and the remedy. It continues as far as it\n" +
			"can. It runs small commands on the machine, and changes nothing. The exit code is 1 if there is a\n" +
			"problem.\n\n" +
			"With --all it only checks whether each machine of environments.toml answers, and prints a line for\n" +
			"each of them.",
		Example: "  exec-server doctor --on box\n" +
			"  exec-server doctor --url wss://box.example:8765 --token-file token\n" +
			"  exec-server doctor --all                      # lists the machines",
		Args: cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := m.CheckExclusive(command); err != nil {
				return err // other errors are findings
			}
			if all && m != (cli.Machine{}) {
				return cli.NewUsageError(errors.New("--all is for all machines; leave out the flags that name one"), command)
			}
			ctx, stop := cli.UntilSignal()
			defer stop()
			d := &doctor{ctx: ctx, version: version, findings: []finding{}}
			if !json {
				d.out = command.OutOrStdout()
			}
			if all {
				d.examineAll()
			} else {
				d.examine(&m)
			}
			if s, ok := errors.AsType[cli.SignalError](context.Cause(ctx)); ok {
				return cli.ExitCode(cli.Signaled + int(s.Signal))
			}
			return d.report(command.OutOrStdout(), json)
		},
	}
	f := command.Flags()
	f.BoolVar(&all, "all", false, "list the machines of environments.toml, and whether each answers")
	f.BoolVar(&json, "json", false, "print one JSON document")
	m.AddFlags(f)
	return command
}

// verdict is the result of one check.
type verdict string

const (
	fine    verdict = "ok"
	warning verdict = "warning"
	problem verdict = "problem"
)

// finding is the result of one check.
type finding struct {
	Check   string  `json:"check"`
	Verdict verdict `json:"verdict"`
	Text    string  `json:"text"`
	Mend    string  `json:"mend,omitempty"` // the remedy
}

// doctor examines one machine.
type doctor struct {
	ctx      context.Context
	version  string    // of this program
	out      io.Writer // nil: only the document at the end
	findings []finding
}

// find adds a finding.
func (d *doctor) find(check string, v verdict, mend, format string, args ...any) {
	d.add(finding{check, v, cli.OneLine(fmt.Sprintf(format, args...)), cli.OneLine(mend)})
}

// add records a finding, and prints it.
func (d *doctor) add(f finding) {
	d.findings = append(d.findings, f)
	if d.out == nil {
		return
	}
	line := fmt.Sprintf("%-7s  %-11s  %s", f.Verdict, f.Check, f.Text)
	if f.Mend != "" {
		line += "; " + f.Mend
	}
	_, _ = fmt.Fprintln(d.out, line) // the exit code reports it too
}

func (d *doctor) ok(check, format string, args ...any) { d.find(check, fine, "", format, args...) }

// report prints the document if json is set, and returns ExitCode(1) if there is a problem.
func (d *doctor) report(out io.Writer, json bool) error {
	well := true
	for _, f := range d.findings {
		well = well && f.Verdict != problem
	}
	if json {
		err := cli.JSON(out, struct {
			OK       bool      `json:"ok"`
			Findings []finding `json:"findings"`
		}{well, d.findings})
		if err != nil {
			return err
		}
	}
	if !well {
		return cli.ExitCode(1)
	}
	return nil
}

// examine runs all checks.
func (d *doctor) examine(m *cli.Machine) {
	r, entry := d.examineName(m)
	if r == nil {
		return
	}
	if entry != nil {
		d.examineFile(entry)
		d.examineCodex(entry)
	}
	env := d.connect(r)
	if env == nil {
		return
	}
	defer cli.Leave(env)
	if r.url == "" && r.command == nil {
		d.ok("version", "this program is %s", d.version)
	} else {
		d.examineVersions(env)
		d.examineSandbox(env)
	}
	d.examineMachine(env)
}

// connect checks the connection. It returns nil if there is none.
func (d *doctor) connect(r *route) *client.Environment {
	switch {
	case r.command != nil:
		return d.examineProgram(r)
	case r.url != "":
		if !d.examineRoute(r) {
			return nil
		}
		return d.examineHandshake(r)
	}
	env, err := local.New(nil)
	if err != nil {
		d.find("handshake", problem, "", "%s", err)
		return nil
	}
	return env
}

// examineAll checks which machines of the configuration answer. Each has one finding, which is in
// the order of the configuration.
func (d *doctor) examineAll() {
	names, byDefault, err := environments.Names()
	if err != nil {
		d.find("name", problem, "correct the file; Codex refuses it, too", "%s", err)
		return
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == cli.ThisMachine })
	if len(names) == 0 {
		d.find("name", problem, "add one with exec-server codex-config add", "no machine is configured")
		return
	}
	answers := make([]chan finding, len(names))
	for i, name := range names {
		answers[i] = make(chan finding, 1)
		go func() { answers[i] <- d.answer(name) }() // until it is received below
	}
	for i, name := range names {
		f := <-answers[i]
		if name == byDefault {
			f.Text += " (the default)"
		}
		d.add(f)
	}
}

// answer checks whether a machine answers, and returns one finding: the first problem, if there is
// one.
func (d *doctor) answer(name string) finding {
	one := &doctor{ctx: d.ctx, version: d.version}
	began := time.Now()
	r, _ := one.examineName(&cli.Machine{On: name})
	if r != nil {
		if env := one.connect(r); env != nil {
			took := time.Since(began).Round(time.Millisecond)
			cli.Leave(env)
			return finding{name, fine, cli.OneLine(fmt.Sprintf("%s answers, after %s", r, took)), ""}
		}
	}
	for _, f := range one.findings {
		if f.Verdict == problem {
			f.Check = name
			if r != nil && r.command != nil { // other findings name the address
				f.Text = cli.OneLine(r.String()) + ": " + f.Text
			}
			return f
		}
	}
	return finding{name, problem, "it does not answer", ""}
}
