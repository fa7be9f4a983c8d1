package auth

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"execserver/protocol"
)

// Scope is a set of rights, in bits.
type Scope uint

// The values of Scope.
const (
	Observe    Scope = 1 << iota // watch the sessions of others
	ReadFiles                    // below Grant.Root
	WriteFiles                   // below Grant.Root
	Exec                         // start processes, and use all methods about them
	Full                         // everything

	// Enter is the set of scopes of which every principal has one.
	Enter = Observe | ReadFiles | WriteFiles | Exec | Full
)

// Grant is the set of a principal's rights. A nil *Grant allows everything.
type Grant struct {
	Scopes     Scope
	Root       string            // for ReadFiles and WriteFiles
	Commands   [][]string        // for Exec; nil allows any
	Directory  string            // for Exec: where processes start; "" is anywhere
	MaxSession time.Duration     // the longest life of a session; 0: any
	Sandbox    *protocol.Sandbox // for every process, and with Full for file requests; nil for none

	// At a gateway, the machines that the principal may use.
	Account  string   // of the machines; "" is DefaultAccount
	Machines []string // names, and patterns that end with "*"; nil for all of the account

	said      grantEntry // the entry from which the Grant was made
	sandboxed bool       // it has a sandbox
}

// DefaultAccount is the account of machines and principals without one.
const DefaultAccount = "default"

// InAccount returns the account whose machines the principal may use.
func (g *Grant) InAccount() string {
	if g == nil || g.Account == "" {
		return DefaultAccount
	}
	return g.Account
}

// AllowsMachine reports whether the principal may use a machine of its account.
func (g *Grant) AllowsMachine(name string) bool {
	return g == nil || g.Machines == nil || slices.ContainsFunc(g.Machines, func(pattern string) bool { return MatchName(pattern, name) })
}

// Everywhere reports whether the principal is not restricted to an account or to machines,
// like the operator of a gateway.
func (g *Grant) Everywhere() bool { return g == nil || g.Account == "" && g.Machines == nil }

// MatchName reports whether a name equals the pattern, or has the prefix before a "*" at
// the end of the pattern.
func MatchName(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// Allows reports whether one of the scopes is granted.
func (g *Grant) Allows(any Scope) bool { return g == nil || g.Scopes&(any|Full) != 0 }

// Observes reports whether the principal may observe the sessions of others.
func (g *Grant) Observes() bool { return g != nil && g.Scopes&Observe != 0 }

// StartSandbox returns the sandbox of every process, or nil for none.
func (g *Grant) StartSandbox() *protocol.Sandbox {
	if g == nil {
		return nil
	}
	return g.Sandbox
}

// FileSandbox returns the sandbox of file requests, or nil for none.
func (g *Grant) FileSandbox() *protocol.Sandbox {
	switch {
	case g == nil:
		return nil
	case g.Scopes&Full != 0:
		return g.Sandbox
	}
	entry := protocol.FileEntry{Access: protocol.AccessRead, Path: protocol.URIPath(g.Root)}
	if g.Scopes&WriteFiles != 0 {
		entry.Access = protocol.AccessWrite
	}
	return &protocol.Sandbox{Files: &protocol.FilePolicy{Entries: []protocol.FileEntry{entry}}}
}

// anyArguments as the last element of a command stands for any further arguments.
const anyArguments = "..."

// AllowsCommand reports whether the principal may start a command line.
func (g *Grant) AllowsCommand(argv []string) bool {
	if g == nil || g.Commands == nil {
		return true
	}
	return slices.ContainsFunc(g.Commands, func(allowed []string) bool {
		if n := len(allowed) - 1; allowed[n] == anyArguments {
			return len(argv) >= n && slices.Equal(argv[:n], allowed[:n])
		}
		return slices.Equal(argv, allowed)
	})
}

// grantEntry is the grant in a [[token]] entry or an assertion. An empty list differs from
// none.
type grantEntry struct {
	Scope      []string     `toml:"scope" json:"scope,omitzero"`
	Root       string       `toml:"root" json:"root,omitzero"`
	Access     string       `toml:"access" json:"access,omitzero"`
	Commands   [][]string   `toml:"commands" json:"commands,omitzero"`
	Directory  string       `toml:"directory" json:"directory,omitzero"`
	MaxSession string       `toml:"max_session" json:"maxSession,omitzero"`
	Sandbox    sandboxEntry `toml:"sandbox" json:"sandbox,omitzero"`
	Account    string       `toml:"account" json:"account,omitzero"`
	Machines   []string     `toml:"machines" json:"machines,omitzero"`
}

// sandboxEntry is a sandbox in the words of exec-server sandbox.
type sandboxEntry struct {
	Read    []string `toml:"read" json:"read,omitzero"`
	Write   []string `toml:"write" json:"write,omitzero"`
	Deny    []string `toml:"deny" json:"deny,omitzero"`
	Network bool     `toml:"network" json:"network,omitzero"`
}

// grant returns the Grant of an entry. Rights that it does not mention are not granted.
func (t grantEntry) grant(hasSandbox bool) (*Grant, error) {
	g := &Grant{
		Root: t.Root, Commands: t.Commands, Directory: t.Directory,
		Account: t.Account, Machines: t.Machines, said: t, sandboxed: hasSandbox,
	}
	for _, scope := range t.Scope {
		switch scope {
		case "observe":
			g.Scopes |= Observe
		case "files":
			g.Scopes |= ReadFiles
		case "exec":
			g.Scopes |= Exec
		case "full":
			g.Scopes |= Full
		default:
			return nil, fmt.Errorf("unknown scope %q; there are observe, files, exec and full", scope)
		}
	}
	files, exec := g.Scopes&ReadFiles != 0, g.Scopes&Exec != 0
	switch {
	case g.Scopes == 0:
		return nil, errors.New("scope must say what it allows: a list of observe, files and exec, or full")
	case g.Scopes&Full != 0 && g.Scopes&^(Full|Observe) != 0:
		return nil, errors.New("full has files and exec in it; leave those out")
	case files != (t.Root != ""):
		return nil, errors.New("root goes with the scope files, which needs one")
	case !files && t.Access != "":
		return nil, errors.New("access goes with the scope files")
	case !exec && (t.Commands != nil || t.Directory != ""):
		return nil, errors.New("commands and directory go with the scope exec")
	case t.Root != "" && !filepath.IsAbs(t.Root), t.Directory != "" && !filepath.IsAbs(t.Directory):
		return nil, errors.New("root and directory must be absolute")
	}
	if t.Account != "" && !validName(t.Account) {
		return nil, errors.New("account must have from 1 to 64 of the characters A-Z a-z 0-9 . _ @ -")
	}
	switch t.Access {
	case "", "read":
	case "write":
		g.Scopes |= WriteFiles
	default:
		return nil, errors.New("access must be read or write")
	}
	for _, command := range t.Commands {
		if len(command) == 0 || !filepath.IsAbs(command[0]) || slices.Contains(command[:len(command)-1], anyArguments) {
			return nil, errors.New("each of commands begins with an absolute path, and has \"...\" only as its last element")
		}
	}
	if t.MaxSession != "" {
		life, err := time.ParseDuration(t.MaxSession)
		if err != nil || life <= 0 {
			return nil, errors.New("max_session must be a time, such as \"8h\"")
		}
		g.MaxSession = life
	}
	if hasSandbox {
		policy, err := t.Sandbox.policy()
		if err != nil {
			return nil, err
		}
		g.Sandbox = policy
	}
	return g, nil
}

// policy makes a policy of a sandbox.
func (t sandboxEntry) policy() (*protocol.Sandbox, error) {
	files := &protocol.FilePolicy{Entries: []protocol.FileEntry{{Access: protocol.AccessRead, Special: protocol.SpecialMinimal}}}
	for _, list := range []struct {
		access protocol.Access
		paths  []string
	}{
		{protocol.AccessRead, t.Read},
		{protocol.AccessWrite, t.Write},
		{protocol.AccessDeny, t.Deny},
	} {
		for _, path := range list.paths {
			if !filepath.IsAbs(path) || strings.IndexByte(path, 0) >= 0 {
				return nil, errors.New("the paths of a sandbox must be absolute")
			}
			files.Entries = append(files.Entries, protocol.FileEntry{Access: list.access, Path: protocol.URIPath(path)})
		}
	}
	return &protocol.Sandbox{Files: files, Network: t.Network}, nil
}
