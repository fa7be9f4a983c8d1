package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// StartForm says how much of a process/start the server still has to work out.
type StartForm byte

// The forms of process/start (PROTOCOL.md, "Direct and prepared starts").
const (
	// StartOrdinary has its program looked up and its environment made from
	// the server's by a policy.
	StartOrdinary StartForm = iota
	// StartDirect has its program looked up, and the environment that it gives.
	StartDirect
	// StartPrepared has everything worked out: Program is an absolute path and
	// Argv the arguments, the program's name included.
	StartPrepared
)

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

func decodeSize(raw json.RawMessage) (TerminalSize, error) {
	f, err := fieldsOf(raw, "TerminalSize")
	if err != nil {
		return TerminalSize{}, err
	}
	s := TerminalSize{Rows: f.dimension("rows"), Cols: f.dimension("cols")}
	return s, f.err
}

func (f *fields) dimension(name string) uint16 {
	return parse(f, f.required(name), func(raw json.RawMessage) (uint16, error) {
		n, err := strconv.ParseUint(string(raw), 10, 64)
		switch {
		case err != nil:
			return 0, expected(raw, "number", "u16")
		case n < 1 || n > math.MaxUint16:
			return 0, fmt.Errorf("invalid value: integer `%d`, expected `%s` from 1 to %d", n, name, math.MaxUint16)
		}
		return uint16(n), nil
	})
}

// startIO is the member io of process/start: what the process has for standard
// input and output.
type startIO struct {
	tty       bool
	size      *TerminalSize // of the terminal
	openStdin bool          // without tty
}

func decodeStartIO(raw json.RawMessage) (*startIO, error) {
	f, err := fieldsOf(raw, "ExecIo")
	if err != nil {
		return nil, err
	}
	pty, pipe := f.optional("pty"), f.optional("pipe")
	switch {
	case (pty == nil) == (pipe == nil):
		return nil, errors.New("`io` must have exactly one of `pty` and `pipe`")
	case pty != nil:
		size, err := decodeSize(pty)
		return &startIO{tty: true, size: &size}, err
	}
	p, err := fieldsOf(pipe, "ExecPipe")
	if err != nil {
		return nil, err
	}
	switch stdin := p.string("stdin"); {
	case p.err != nil:
		return nil, p.err
	case stdin != "open" && stdin != "closed":
		return nil, fmt.Errorf("unknown variant `%s`, expected `open` or `closed`", stdin)
	default:
		return &startIO{openStdin: stdin == "open"}, nil
	}
}

// decodeIO decodes what the process has for standard input and output, in either
// way of saying it, or in both when they agree.
func (p *Start) decodeIO(f *fields) {
	if raw := f.optional("size"); raw != nil {
		size := parse(f, raw, decodeSize)
		p.Size = &size
	}
	raw := f.optional("io")
	if raw == nil {
		p.TTY = f.bool("tty")
		p.PipeStdin = f.boolOr("pipeStdin", false)
		if p.Size != nil && !p.TTY {
			f.fail(errors.New("`size` is for a terminal; set `tty` to true"))
		}
		return
	}
	io := parse(f, raw, decodeStartIO)
	if f.err != nil {
		return
	}
	given := *p
	p.TTY, p.PipeStdin = f.boolOr("tty", io.tty), f.boolOr("pipeStdin", io.openStdin)
	p.Size = io.size
	switch {
	case f.err != nil:
	case p.TTY != io.tty:
		f.fail(errors.New("`io` and `tty` contradict each other"))
	case p.PipeStdin != io.openStdin:
		f.fail(errors.New("`io` and `pipeStdin` contradict each other"))
	case given.Size != nil && (io.size == nil || *given.Size != *io.size):
		f.fail(errors.New("`io` and `size` contradict each other"))
	}
}

// ordinaryMembers are the members of an ordinary start, which cannot stand
// beside another form.
var ordinaryMembers = []string{
	"argv", "cwd", "env", "tty", "arg0", "pipeStdin", "size", "io",
}

// policyMembers ask for something that only an ordinary start has.
var policyMembers = []string{
	"envPolicy", "sandbox", "enforceManagedNetwork", "managedNetwork", "networkProxy",
}

// decodeForm decodes the member of a direct or prepared start; it reports false
// for an ordinary one.
func (p *Start) decodeForm(f *fields) bool {
	direct, prepared := f.optional("direct"), f.optional("prepared")
	name, raw := "direct", direct
	switch {
	case direct == nil && prepared == nil:
		return false
	case direct != nil && prepared != nil:
		f.fail(errors.New("`direct` and `prepared` exclude each other"))
		return true
	case direct != nil:
		p.Form = StartDirect
	default:
		p.Form, name, raw = StartPrepared, "prepared", prepared
	}
	inner, err := fieldsOf(raw, "ExecForm")
	if err != nil {
		f.fail(err)
		return true
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
	p.decodeInner(f, inner)
	f.fail(inner.err)
	return true
}

func (p *Start) decodeInner(f, inner *fields) {
	inside := inner.optionalString("processId")
	switch {
	case f.get("processId") != nil:
		p.ProcessID = f.identifier("processId")
		if inside != nil && *inside != p.ProcessID {
			f.fail(errors.New("two different `processId`"))
		}
	case inside != nil:
		p.ProcessID = *inside
	default:
		f.identifier("processId")
	}
	if p.Form == StartPrepared {
		p.Program = inner.path("program")
	} else {
		p.Arg0 = inner.optionalString("arg0")
	}
	p.Argv = inner.strings("argv")
	p.Cwd = inner.path("cwd")
	p.Env = inner.stringMap("env")
	if io := parse(inner, inner.required("io"), decodeStartIO); io != nil {
		p.TTY, p.PipeStdin, p.Size = io.tty, io.openStdin, io.size
	}
}

// Drain says what process/closed waits for when the process has exited and
// descendants hold its streams (PROTOCOL.md, "exited and closed").
type Drain string

// The values of Drain.
const (
	DrainQuiet Drain = "quiet" // until they say nothing for a moment
	DrainEOF   Drain = "eof"   // until the end of the streams
)

func (f *fields) drain() Drain {
	name := f.optionalString("drain")
	if name == nil {
		return ""
	}
	switch d := Drain(*name); d {
	case DrainQuiet, DrainEOF:
		return d
	default:
		f.fail(fmt.Errorf("unknown variant `%s`, expected `quiet` or `eof`", d))
		return ""
	}
}

// StartLimits are the limits of a process with everything that it starts; nil
// means none (PROTOCOL.md, "Limits of a process").
type StartLimits struct {
	TimeoutMs      *uint64  `json:"timeoutMs,omitempty"`
	MaxOutputBytes *uint64  `json:"maxOutputBytes,omitempty"`
	MemoryBytes    *uint64  `json:"memoryBytes,omitempty"`
	Pids           *uint64  `json:"pids,omitempty"`
	CPUs           *float64 `json:"cpus,omitempty"`
}

func (f *fields) startLimits() StartLimits {
	return StartLimits{
		TimeoutMs:      f.optionalUnsigned("timeoutMs"),
		MaxOutputBytes: f.optionalUnsigned("maxOutputBytes"),
		MemoryBytes:    f.optionalUnsigned("memoryBytes"),
		Pids:           f.optionalUnsigned("pids"),
		CPUs:           f.optionalNumber("cpus"),
	}
}

// MarshalJSON spells a start in its form.
func (p Start) MarshalJSON() ([]byte, error) {
	type ordinary Start
	if p.Form == StartOrdinary {
		return json.Marshal(ordinary(p))
	}
	type pipe struct {
		Stdin string `json:"stdin"`
	}
	type io struct {
		PTY  *TerminalSize `json:"pty,omitempty"`
		Pipe *pipe         `json:"pipe,omitempty"`
	}
	type form struct {
		Program *Path             `json:"program,omitempty"`
		Argv    []string          `json:"argv"`
		Arg0    *string           `json:"arg0,omitempty"`
		Cwd     Path              `json:"cwd"`
		Env     map[string]string `json:"env"`
		IO      io                `json:"io"`
	}
	inner := form{Argv: p.Argv, Arg0: p.Arg0, Cwd: p.Cwd, Env: p.Env}
	switch {
	case p.TTY:
		inner.IO.PTY = p.Size
	case p.PipeStdin:
		inner.IO.Pipe = &pipe{"open"}
	default:
		inner.IO.Pipe = &pipe{"closed"}
	}
	outer := struct {
		ProcessID string    `json:"processId"`
		StartID   *string   `json:"startId,omitempty"`
		Direct    *form     `json:"direct,omitempty"`
		Prepared  *form     `json:"prepared,omitempty"`
		Metadata  *Metadata `json:"metadata,omitempty"`

		Drain           Drain `json:"drain,omitempty"`
		KeepDescendants bool  `json:"keepDescendants,omitempty"`
		StartLimits
	}{
		ProcessID: p.ProcessID, StartID: p.StartID, Metadata: p.Metadata,
		Drain: p.Drain, KeepDescendants: p.KeepDescendants, StartLimits: p.StartLimits,
	}
	if p.Form == StartDirect {
		outer.Direct = &inner
	} else {
		inner.Program, outer.Prepared = &p.Program, &inner
	}
	return json.Marshal(outer)
}
