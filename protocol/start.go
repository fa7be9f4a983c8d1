package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
)

// StartParams are the params of process/start.
type StartParams struct {
	ProcessID             string            `json:"processId" wire:"identifier"`         // chosen by the client
	StartID               *string           `json:"startId,omitempty" wire:"identifier"` // makes the request idempotent
	Argv                  []string          `json:"argv"`                                // not empty; the first is the program
	Cwd                   Path              `json:"cwd"`
	Env                   map[string]string `json:"env"`
	TTY                   bool              `json:"tty" wire:"-"`                 // start the process on a terminal; required without io
	Arg0                  *string           `json:"arg0,omitempty"`               // the name that the program sees; the server still runs the first of Argv
	EnvPolicy             *EnvPolicy        `json:"envPolicy,omitempty"`          // what the process inherits; nil means nothing but Env
	PipeStdin             bool              `json:"pipeStdin,omitempty" wire:"-"` // without a terminal: standard input is a pipe, not /dev/null
	Size                  *TerminalSize     `json:"size,omitempty" wire:"-"`      // of the terminal; nil means 24 rows and 80 columns
	Sandbox               json.RawMessage   `json:"sandbox,omitempty"`
	EnforceManagedNetwork bool              `json:"enforceManagedNetwork,omitempty" wire:"absent=false"` // the server refuses true
	ManagedNetwork        json.RawMessage   `json:"managedNetwork,omitempty"`                            // the server refuses it
	NetworkProxy          json.RawMessage   `json:"networkProxy,omitempty"`                              // the server refuses it
	Metadata              *Metadata         `json:"metadata,omitempty"`

	// Drain selects what process/closed waits for; "" means the server's default.
	Drain Drain `json:"drain,omitempty" wire:"optional,enum=quiet|eof"`
	StartLimits

	// Form is the form of the start, from the members direct and prepared. Program
	// belongs to a prepared start.
	Form    StartForm `json:"-"`
	Program Path      `json:"-"`
}

// EnvPolicy selects the variables that a process inherits from the server's environment
// (PROTOCOL.md, "Environment of a process").
type EnvPolicy struct {
	Inherit               string            `json:"inherit"`               // the variables to begin with: InheritAll, InheritCore or InheritNone
	IgnoreDefaultExcludes bool              `json:"ignoreDefaultExcludes"` // keep names that look like secrets
	Exclude               []string          `json:"exclude"`               // patterns of names to drop
	Set                   map[string]string `json:"set"`                   // variables to add
	IncludeOnly           []string          `json:"includeOnly"`           // patterns; if there are any, drop names that match none
}

// The values of EnvPolicy.Inherit.
const (
	InheritAll  = "all"
	InheritCore = "core"
	InheritNone = "none"
)

func (p *EnvPolicy) check() error {
	return at("inherit", oneOf(p.Inherit, InheritCore, InheritAll, InheritNone))
}

// Metadata identifies a process in the caller's records. The server only logs it.
type Metadata struct {
	ThreadID   *string `json:"threadId,omitempty" wire:"identifier"`   // a UUID
	ToolCallID *string `json:"toolCallId,omitempty" wire:"identifier"` // any text
}

func (m *Metadata) check() error {
	if m.ThreadID != nil && !isUUID(*m.ThreadID) {
		return at("threadId", fmt.Errorf("%s is not a UUID", quote(*m.ThreadID)))
	}
	return nil
}

// isUUID accepts the usual form, 8-4-4-4-12 hexadecimal digits.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch i {
		case 8, 13, 18, 23:
			if s[i] != '-' {
				return false
			}
		default:
			if !isHex(s[i]) {
				return false
			}
		}
	}
	return true
}

// StartResult is the answer to process/start.
type StartResult struct {
	ProcessID   string `json:"processId"`
	SandboxType string `json:"sandboxType"` // SandboxNone or SandboxLinuxSeccomp
}

// StartForm is how much of a process/start the client has resolved.
type StartForm byte

// The forms of process/start (EXTENSIONS.md, "processDirectExec and processPreparedExec").
const (
	// StartOrdinary lets the server look up the program and build the environment by a
	// policy.
	StartOrdinary StartForm = iota
	// StartDirect lets the server look up the program. The environment is exactly that of
	// the request.
	StartDirect
	// StartPrepared has everything resolved: Program is an absolute path, and Argv includes
	// argument 0.
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
	PTY  *TerminalSize `json:"pty,omitempty"`  // a terminal of this size
	Pipe *startPipe    `json:"pipe,omitempty"` // no terminal
}

// startPipe is standard input and output without a terminal.
type startPipe struct {
	Stdin string `json:"stdin" wire:"enum=open|closed"` // what standard input is: open means a pipe, and closed means /dev/null
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

// ordinaryMembers are the members of an ordinary start, which cannot be combined with
// another form.
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
	ProcessID *string           `json:"processId,omitempty"` // the same as outside, or only here
	Program   *Path             `json:"program,omitempty"`   // the absolute path of the program; required in prepared, and not in direct
	Argv      []string          `json:"argv"`                // the program's name first
	Arg0      *string           `json:"arg0,omitempty"`      // for direct: the name that the program sees
	Cwd       Path              `json:"cwd"`
	Env       map[string]string `json:"env"` // all variables of the process
	IO        startIO           `json:"io"`  // standard input and output
}

// startOuter is the members of a start that contains a resolvedStart.
type startOuter struct {
	ProcessID *string        `json:"processId,omitempty" wire:"identifier"` // chosen by the client; required unless it is inside
	StartID   *string        `json:"startId,omitempty" wire:"identifier"`   // a second start with the same ids starts nothing
	Direct    *resolvedStart `json:"direct,omitempty" wire:"-"`             // the server looks the program up
	Prepared  *resolvedStart `json:"prepared,omitempty" wire:"-"`           // the server looks nothing up
	Metadata  *Metadata      `json:"metadata,omitempty"`

	Drain Drain `json:"drain,omitempty" wire:"optional,enum=quiet|eof"` // what closed waits for; "" means the server's default
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

// Drain selects what process/closed waits for when the process has exited and descendants
// still hold its streams (EXTENSIONS.md, "processDrain").
type Drain string

// The values of Drain.
const (
	DrainQuiet Drain = "quiet" // until the streams have been quiet for a moment
	DrainEOF   Drain = "eof"   // until the end of the streams
)

// StartLimits are the limits of a process and its descendants. nil means none
// (EXTENSIONS.md, "processLimits").
type StartLimits struct {
	TimeoutMs      *uint64  `json:"timeoutMs,omitempty"`      // the time from the start until closed
	MaxOutputBytes *uint64  `json:"maxOutputBytes,omitempty"` // the output of all streams together
	MemoryBytes    *uint64  `json:"memoryBytes,omitempty"`    // the memory, without swap
	Pids           *uint64  `json:"pids,omitempty"`           // the processes and threads at the same time
	CPUs           *float64 `json:"cpus,omitempty"`           // the number of processors, at least 0.01
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
