package main

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

func newDoctorCommand() *cobra.Command {
	var w where
	var json bool
	command := &cobra.Command{
		Use:        "doctor [flags]",
		Short:      "Find out what is wrong between this machine and a server",
		GroupID:    cli.GroupSetUp,
		SuggestFor: []string{"diagnose", "check", "ping", "test"},
		Long: "doctor goes through everything between this program and a server, in order: what names the machine,\n" +
			"the name of its host, TCP, TLS, the token, the handshake, versions, the sandbox, the directory, the\n" +
			"clock, the disk and the limits of the machine. It prints one line for each: ok, warning or problem,\n" +
			"and how to mend it. It goes on as far as it can. It starts small commands on the machine, and changes\n" +
			"nothing there. The exit code is 1 if there is a problem.",
		Example: "  exec-server doctor --on box\n" +
			"  exec-server doctor --url wss://box.example:8765 --token-file token",
		Args: cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := w.checkOne(command); err != nil {
				return err // what else may be wrong is a finding
			}
			ctx, stop := cli.UntilSignal()
			defer stop()
			d := &doctor{ctx: ctx, findings: []finding{}}
			if !json {
				d.out = command.OutOrStdout()
			}
			d.examine(&w)
			if s, ok := errors.AsType[cli.SignalError](context.Cause(ctx)); ok {
				return cli.ExitCode(cli.Signaled + int(s.Signal))
			}
			return d.report(command.OutOrStdout(), json)
		},
	}
	f := command.Flags()
	f.SortFlags = false
	f.BoolVar(&json, "json", false, "print one JSON document")
	w.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
	return command
}

// verdict is the result of one check.
type verdict string

const (
	fine    verdict = "ok"
	warning verdict = "warning"
	problem verdict = "problem"
)

// finding is what one check has found.
type finding struct {
	Check   string  `json:"check"`
	Verdict verdict `json:"verdict"`
	Text    string  `json:"text"`
	Mend    string  `json:"mend,omitempty"` // what to do
}

// doctor examines one machine.
type doctor struct {
	ctx      context.Context
	out      io.Writer // nil prints nothing before the end
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
	_, _ = fmt.Fprintln(d.out, line) // the exit code says the same
}

func (d *doctor) ok(check, format string, args ...any) { d.find(check, fine, "", format, args...) }

// report prints the document, if it is wanted, and returns whether there is a problem.
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

// examine goes through everything.
func (d *doctor) examine(w *where) {
	way := d.examineName(w)
	if way == nil {
		return
	}
	var env *client.Environment
	switch {
	case way.command != nil:
		env = d.examineProgram(way)
	case way.url != "":
		if !d.examineWay(way) {
			return
		}
		env = d.examineHandshake(way)
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
	if way.url == "" && way.command == nil {
		d.ok("version", "this program is %s", buildVersion())
	} else {
		d.examineVersions(env)
		d.examineSandbox(env)
	}
	d.examineMachine(env)
}
