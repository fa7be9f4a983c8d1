package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
)

// StartForm says how much of a process/start the server still has to resolve.
type StartForm byte

// The forms of process/start (PROTOCOL.md, "Direct and prepared starts").
const (
	// StartOrdinary lets the server look up the program and build the environment by a
	// policy.
	StartOrdinary StartForm = iota
	// StartDirect lets the server look up the program. The environment is exactly that of
	// the request.
	StartDirect
	// StartPrepared has everything resolved: Program is an absolute path, and Argv are
	// the arguments with the program's name first.
	StartPrepared
)

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// startIO is the member io of process/start: the process's standard input and output. It
// has exactly one of the two.
type startIO struct {
	PTY  *TerminalSize `json:"pty,omitempty"`
	Pipe *startPipe    `json:"pipe,omitempty"`
}

type startPipe struct {
	Stdin string `json:"stdin" wire:"enum=open|closed"`
}

func (io *startIO) check() error {
	if (io.PTY == nil) == (io.Pipe == nil) {
		return errors.New("needs either pty or pipe")
	}
	return nil
}

func (io *startIO) openStdin() bool { return io.Pipe != nil && io.Pipe.Stdin == "open" }

// decodeIO decodes standard input and output from either form, or from both if they
// agree.
func (p *StartParams) decodeIO(f *fields) {
	var given struct {
		Size *TerminalSize `json:"size"`
		IO   *startIO      `json:"io"`
	}
	f.into(&given)
	p.Size = given.Size
	if given.IO == nil {
		p.TTY = parse(f, "tty", f.required("tty"), decodeBool)
		p.PipeStdin = f.boolOr("pipeStdin", false)
		if p.Size != nil && !p.TTY {
			f.fail(errors.New("`size` is for a terminal; set `tty` to true"))
		}
		return
	}
	p.Size = given.IO.PTY
	p.TTY = f.boolOr("tty", p.Size != nil)
	p.PipeStdin = f.boolOr("pipeStdin", given.IO.openStdin())
	switch {
	case p.TTY != (p.Size != nil):
		f.fail(errors.New("`io` and `tty` contradict each other"))
	case p.PipeStdin != given.IO.openStdin():
		f.fail(errors.New("`io` and `pipeStdin` contradict each other"))
	case given.Size != nil && (p.Size == nil || *given.Size != *p.Size):
		f.fail(errors.New("`io` and `size` contradict each other"))
	}
}

// ordinaryMembers are the members of an ordinary start, which cannot stand
// beside another form.
var ordinaryMembers = []string{
	"argv", "cwd", "env", "tty", "arg0", "pipeStdin", "size", "io",
}

// policyMembers are requests that only an ordinary start may have.
var policyMembers = []string{
	"envPolicy", "sandbox", "enforceManagedNetwork", "managedNetwork", "networkProxy",
}

// resolvedStart is the member direct or prepared of process/start: a start whose
// environment, and if prepared also the program, is resolved.
type resolvedStart struct {
	ProcessID *string           `json:"processId,omitempty"`
	Program   *Path             `json:"program,omitempty"`
	Argv      []string          `json:"argv"`
	Arg0      *string           `json:"arg0,omitempty"`
	Cwd       Path              `json:"cwd"`
	Env       map[string]string `json:"env"`
	IO        startIO           `json:"io"`
}

// startOuter is the members beside a resolvedStart.
type startOuter struct {
	ProcessID *string        `json:"processId,omitempty" wire:"identifier"`
	StartID   *string        `json:"startId,omitempty" wire:"identifier"`
	Direct    *resolvedStart `json:"direct,omitempty" wire:"-"`
	Prepared  *resolvedStart `json:"prepared,omitempty" wire:"-"`
	Metadata  *Metadata      `json:"metadata,omitempty"`

	Drain Drain `json:"drain,omitempty" wire:"optional,enum=quiet|eof"`
	StartLimits
}

func (p *StartParams) decodeFields(f *fields) {
	switch direct, prepared := f.optional("direct"), f.optional("prepared"); {
	case direct != nil && prepared != nil:
		f.fail(errors.New("`direct` and `prepared` exclude each other"))
	case direct != nil:
		p.Form = StartDirect
		p.decodeForm(f, "direct", direct)
	case prepared != nil:
		p.Form = StartPrepared
		p.decodeForm(f, "prepared", prepared)
	default:
		f.into(p)
		p.decodeIO(f)
	}
	if p.StartID != nil && *p.StartID == "" {
		f.fail(errors.New("startId must not be empty"))
	}
}

// decodeForm decodes a start whose member name is raw.
func (p *StartParams) decodeForm(f *fields, name string, raw json.RawMessage) {
	inner, err := fieldsOf(raw)
	if err != nil {
		f.fail(at(name, err))
		return
	}
	for _, member := range ordinaryMembers {
		if f.optional(member) != nil {
			f.fail(fmt.Errorf("`%s` and `%s` exclude each other", name, member))
		}
	}
	for _, member := range policyMembers {
		if f.optional(member) != nil || inner.optional(member) != nil {
			f.fail(fmt.Errorf("a %s start takes no `%s`", name, member))
		}
	}
	var outer startOuter
	var form resolvedStart
	f.into(&outer)
	inner.into(&form)
	f.fail(at(name, inner.err))
	switch {
	case f.err != nil:
		return
	case outer.ProcessID == nil && form.ProcessID == nil:
		f.required("processId")
		return
	case outer.ProcessID == nil:
		outer.ProcessID = form.ProcessID
	case form.ProcessID != nil && *form.ProcessID != *outer.ProcessID:
		f.fail(errors.New("two different `processId`"))
	}
	p.ProcessID, p.StartID, p.Metadata = *outer.ProcessID, outer.StartID, outer.Metadata
	p.Drain, p.StartLimits = outer.Drain, outer.StartLimits
	p.Argv, p.Cwd, p.Env = form.Argv, form.Cwd, form.Env
	p.TTY, p.PipeStdin, p.Size = form.IO.PTY != nil, form.IO.openStdin(), form.IO.PTY
	if p.Form == StartDirect {
		p.Arg0 = form.Arg0
	} else if form.Program == nil {
		f.fail(at(name, missing("program")))
	} else {
		p.Program = *form.Program
	}
}

// Drain says what process/closed waits for when the process has exited and
// descendants hold its streams (PROTOCOL.md, "exited and closed").
type Drain string

// The values of Drain.
const (
	DrainQuiet Drain = "quiet" // until there is no output for a moment
	DrainEOF   Drain = "eof"   // until the end of the streams
)

// StartLimits are the limits of a process and its descendants. nil means none
// (PROTOCOL.md, "Limits of a process").
type StartLimits struct {
	TimeoutMs      *uint64  `json:"timeoutMs,omitempty"`
	MaxOutputBytes *uint64  `json:"maxOutputBytes,omitempty"`
	MemoryBytes    *uint64  `json:"memoryBytes,omitempty"`
	Pids           *uint64  `json:"pids,omitempty"`
	CPUs           *float64 `json:"cpus,omitempty"`
}

// MarshalJSON encodes a start in its form.
func (p StartParams) MarshalJSON() ([]byte, error) {
	type ordinary StartParams
	if p.Form == StartOrdinary {
		return json.Marshal(ordinary(p))
	}
	form := resolvedStart{Argv: p.Argv, Arg0: p.Arg0, Cwd: p.Cwd, Env: p.Env}
	switch {
	case p.TTY:
		form.IO.PTY = p.Size
	case p.PipeStdin:
		form.IO.Pipe = &startPipe{"open"}
	default:
		form.IO.Pipe = &startPipe{"closed"}
	}
	outer := startOuter{
		ProcessID: &p.ProcessID, StartID: p.StartID, Metadata: p.Metadata,
		Drain: p.Drain, StartLimits: p.StartLimits,
	}
	if p.Form == StartDirect {
		outer.Direct = &form
	} else {
		form.Program, outer.Prepared = &p.Program, &form
	}
	return json.Marshal(outer)
}
