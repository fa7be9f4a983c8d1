package server

import (
	"log/slog"
	"slices"
	"strconv"

	"execserver/internal/sandbox"
	"execserver/internal/trusted"
)

// Sandbox confines commands and file operations for which a client requests a sandbox.
// [NewSandbox] makes one. Several servers may use it.
type Sandbox struct {
	engine *sandbox.Engine
}

// SandboxMode says when a Sandbox confines.
type SandboxMode string

// The values of SandboxMode.
const (
	SandboxAuto     SandboxMode = "auto"     // enforce what clients request, or refuse it
	SandboxRequire  SandboxMode = "require"  // the same, and start nothing without a sandbox
	SandboxLandlock SandboxMode = "landlock" // use only Landlock, and refuse policies that need more
)

// SandboxOptions are the options of NewSandbox. The zero value means the defaults. All
// paths are absolute.
type SandboxOptions struct {
	Log  *slog.Logger // nil discards
	Mode SandboxMode  // default SandboxAuto

	// Sockets are the unix sockets of other programs, or directories of such, that a
	// confined command with a network may use.
	Sockets []string
	// Hide are paths that no confined command reaches, such as the server's own unix
	// socket.
	Hide []string
	// Auth is the server's Authenticator. Whatever a policy says, no confined command reads
	// or writes its secret files, and none writes its public ones, also those that it reads
	// only later.
	Auth *Authenticator
	// Secrets are more files that no confined command reads or writes, such as the audit
	// log and the key of a TLS certificate. Protected are more files that none writes.
	Secrets, Protected []string
}

// NewSandbox returns a Sandbox, and finds out in the background how it can confine on this
// machine. A program that uses it must call [RunHelper] first in main. Where the machine
// has no means, or the program does not call RunHelper, the server refuses every request
// for a sandbox. Close the Sandbox after the Shutdown of its Server. NewSandbox panics if
// the mode is unknown.
func NewSandbox(opts SandboxOptions) *Sandbox {
	switch opts.Mode {
	case "", SandboxAuto, SandboxRequire, SandboxLandlock:
	default:
		panic("server: unknown SandboxMode " + strconv.Quote(string(opts.Mode)))
	}
	secrets, protected := slices.Clone(opts.Secrets), slices.Clone(opts.Protected)
	files := func(own []string, kind trusted.Kind) []string { return slices.Concat(own, opts.Auth.paths(kind)) }
	return &Sandbox{sandbox.New(&sandbox.Options{
		Log: opts.Log, Mode: sandbox.Mode(opts.Mode), Sockets: opts.Sockets, Hide: opts.Hide,
		Secrets: func() []string { return files(secrets, trusted.Secret) },
		Trusted: func() []string { return files(protected, trusted.Public) },
	})}
}

// Close releases what the Sandbox holds. No confined command may still run. Close may be
// called again.
func (s *Sandbox) Close() { s.engine.Close() }
