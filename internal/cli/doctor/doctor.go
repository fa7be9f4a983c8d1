// Package doctor implements the command doctor, which examines everything between this program and a
// server.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/client/local"
	"execserver/internal/cli"
)

// Command returns the command doctor. version is that of this program.
func Command(version string) *cobra.Command {
	var m cli.Machine
	var json bool
	command := &cobra.Command{
		Use:        "doctor [flags]",
		Short:      "Find problems between this machine and a server",
		GroupID:    cli.GroupSetUp,
		SuggestFor: []string{"diagnose", "check", "ping", "test"},
		Long: "doctor checks each step between this program and a server: the name, the host, TCP, TLS, the token,\n" +
			"the handshake and the versions. Then it checks the sandbox, the directory, the clock, the disk and\n" +
			"the limits of the machine.\n\n" +
			"It prints a line for each check: ok, warning or problem, and the remedy. It continues as far as it\n" +
			"can. It runs small commands on the machine, and changes nothing. The exit code is 1 if there is a\n" +
			"problem.",
		Example: "  exec-server doctor --on box\n" +
			"  exec-server doctor --url wss://box.example:8765 --token-file token",
		Args: cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := m.CheckExclusive(command); err != nil {
				return err // other errors are findings
			}
			ctx, stop := cli.UntilSignal()
			defer stop()
			d := &doctor{ctx: ctx, version: version, findings: []finding{}}
			if !json {
				d.out = command.OutOrStdout()
			}
			d.examine(&m)
			if s, ok := errors.AsType[cli.SignalError](context.Cause(ctx)); ok {
				return cli.ExitCode(cli.Signaled + int(s.Signal))
			}
			return d.report(command.OutOrStdout(), json)
		},
	}
	f := command.Flags()
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

// find records a finding, and prints it.
func (d *doctor) find(check string, v verdict, mend, format string, args ...any) {
	f := finding{check, v, cli.OneLine(fmt.Sprintf(format, args...)), cli.OneLine(mend)}
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
	r := d.examineName(m)
	if r == nil {
		return
	}
	var env *client.Environment
	switch {
	case r.command != nil:
		env = d.examineProgram(r)
	case r.url != "":
		if !d.examineRoute(r) {
			return
		}
		env = d.examineHandshake(r)
	default:
		var err error
		if env, err = local.New(nil); err != nil {
			d.find("handshake", problem, "", "%s", err)
			return
		}
	}
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
