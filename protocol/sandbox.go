package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// The values of SandboxType.
const (
	SandboxNone         = "none"         // the client asked for no sandbox
	SandboxLinuxSeccomp = "linuxSeccomp" // with any mechanism
)

// Bounds of a policy (PROTOCOL.md, "Sandbox").
const (
	maxPolicyEntries = 512
	maxPatternBytes  = 4 << 10
)

// Sandbox is the sandbox that a client requests for a process or a file operation, from
// any of its released forms.
type Sandbox struct {
	// Files is the policy about files; nil does not restrict them.
	Files *FilePolicy
	// Network allows the process to use the network.
	Network bool
	// Cwd is the base of relative patterns and the default workspace; zero if absent.
	Cwd Path
	// WorkspaceRoots are the paths for SpecialProjectRoots. nil means Cwd, and an empty list
	// none.
	WorkspaceRoots []Path
	// Within is a second policy that also applies: access needs the permission of both. nil
	// means none.
	Within *Sandbox
}

// FilePolicy is the rules about files. A path without an entry cannot be accessed.
type FilePolicy struct {
	Entries []FileEntry
	// GlobDepth bounds how many directories "**" of a pattern matches; nil means no
	// bound.
	GlobDepth *uint64
}

// Access is the access that an entry grants or denies.
type Access byte

// The values of Access. If two entries name the same path, the greater value applies.
const (
	AccessRead Access = iota + 1
	AccessWrite
	AccessDeny
)

// FileEntry grants or denies access to a path and everything below it. It has exactly one
// of Path, Special and Pattern.
type FileEntry struct {
	Access  Access
	Path    Path
	Special string // a token of the Special constants
	Subpath string // of SpecialProjectRoots
	Pattern string // with AccessDeny
}

// The tokens of FileEntry.Special.
const (
	SpecialRoot         = "root"
	SpecialMinimal      = "minimal"
	SpecialProjectRoots = "project_roots"
	SpecialTmpdir       = "tmpdir"
	SpecialSlashTmp     = "slash_tmp"
	SpecialUnknown      = "unknown" // of a newer client; grants nothing
)

// Enforces reports whether the policy restricts anything.
func (s *Sandbox) Enforces() bool { return s.Files != nil || !s.Network || s.Within != nil }

// DecodeSandbox decodes the sandbox in the params of a request. An invalid spelling is an
// *Error with the code InvalidParams. forFiles selects the code of file methods for a
// policy that is well formed but means nothing on this host.
func DecodeSandbox(raw json.RawMessage, forFiles bool) (*Sandbox, error) {
	s, err := decodeSandbox(raw)
	if err == nil {
		return s, nil
	}
	if foreign, ok := errors.AsType[*sandboxHostError](err); ok && forFiles {
		return nil, Errorf(CodeInvalidRequest, "%s", foreign)
	}
	return nil, Errorf(CodeInvalidParams, "invalid params: %s", at("sandbox", err))
}

// sandboxHostError reports a well-formed sandbox that is not for this host.
type sandboxHostError struct{ text string }

func (e *sandboxHostError) Error() string { return e.text }

var errNotSupported = errors.New("not supported; update the client")

func decodeSandbox(raw json.RawMessage) (*Sandbox, error) {
	f, err := fieldsOf(raw)
	if err != nil {
		return nil, err
	}
	if f.optional("additionalPermissions") != nil {
		return nil, at("additionalPermissions", errNotSupported)
	}
	if f.get("permissions") == nil {
		return decodeOldSandbox(f)
	}
	s := &Sandbox{}
	s.decodePermissions(f)
	s.decodeContext(f)
	if f.err == nil {
		f.fail(s.checkPaths())
	}
	return s, f.err
}

// decodeContext decodes the anchor of a policy, and checks the unused members.
func (s *Sandbox) decodeContext(f *fields) {
	context := f
	if raw := f.optional("policyContext"); raw != nil {
		if context = parse(f, "policyContext", raw, fieldsOf); context == nil {
			return
		}
	}
	s.Cwd = context.optionalPath("cwd")
	s.WorkspaceRoots = parse(context, "workspaceRoots", context.optional("workspaceRoots"), decodePaths)
	if context != f {
		f.fail(at("policyContext", context.err))
	}
	f.optionalPath("userHomeDir")
	f.boolOr("useLegacyLandlock", false)
	if f.get("sandboxOverride") != nil { // the reason for a wider policy, which the policy already contains
		f.choice("sandboxOverride", "noOverride", "escalatedSandboxWithRestrictions", "bypassSandboxFirstAttempt")
	}
	if f.choice("windowsSandboxLevel", "disabled", "restricted-token", "elevated", "mxc") == "mxc" {
		f.fail(&sandboxHostError{"windowsSandboxLevel asks for MXC, which this server does not have"})
	}
}

// checkPaths refuses paths of another kind of host.
func (s *Sandbox) checkPaths() error {
	paths := slices.Clone(s.WorkspaceRoots)
	if !s.Cwd.IsZero() {
		paths = append(paths, s.Cwd)
	}
	if s.Files != nil {
		for _, e := range s.Files.Entries {
			if !e.Path.IsZero() {
				paths = append(paths, e.Path)
			}
		}
	}
	for _, p := range paths {
		if _, err := p.OSPath(); err != nil {
			return &sandboxHostError{"sandbox: " + err.Error()}
		}
	}
	return nil
}

func (s *Sandbox) decodePermissions(f *fields) {
	p := parse(f, "permissions", f.required("permissions"), fieldsOf)
	if p == nil {
		return
	}
	kind := p.choice("type", "managed", "disabled", "external")
	if kind == "disabled" {
		s.Network = true
	} else {
		s.Network = p.choice("network", "restricted", "enabled") == "enabled"
	}
	if kind == "managed" && p.err == nil {
		s.Files = parse(p, "file_system", p.required("file_system"), decodeFilePolicy)
	}
	f.fail(at("permissions", p.err))
}

func decodeFilePolicy(raw json.RawMessage) (*FilePolicy, error) {
	f, err := fieldsOf(raw)
	if err != nil {
		return nil, err
	}
	kind := f.choice("type", "restricted", "unrestricted")
	if f.err != nil || kind == "unrestricted" {
		return nil, f.err
	}
	p := &FilePolicy{}
	if raw := f.optional("glob_scan_max_depth"); raw != nil {
		p.GlobDepth = new(parse(f, "glob_scan_max_depth", raw, decodeUnsigned))
	}
	p.Entries = parse(f, "entries", f.required("entries"), func(raw json.RawMessage) ([]FileEntry, error) {
		return decodeList(raw, decodeFileEntry)
	})
	if len(p.Entries) > maxPolicyEntries {
		f.fail(at("entries", fmt.Errorf("%d entries, the limit is %d", len(p.Entries), maxPolicyEntries)))
	}
	return p, f.err
}

func decodeFileEntry(raw json.RawMessage) (FileEntry, error) {
	f, err := fieldsOf(raw)
	if err != nil {
		return FileEntry{}, err
	}
	e := parse(f, "path", f.required("path"), decodeEntryPath)
	switch f.choice("access", "read", "write", "deny", "none") {
	case "read":
		e.Access = AccessRead
	case "write":
		e.Access = AccessWrite
	case "deny", "none":
		e.Access = AccessDeny
	}
	if f.optional("missing_path_behavior") != nil {
		f.choice("missing_path_behavior", "skip")
	}
	if e.Special == SpecialUnknown && e.Access == AccessDeny {
		f.fail(errors.New("an entry denies a special path that this server does not know; update it"))
	}
	return e, f.err
}

func decodeEntryPath(raw json.RawMessage) (e FileEntry, err error) {
	f, err := fieldsOf(raw)
	if err != nil {
		return e, err
	}
	switch f.choice("type", "path", "special", "glob_pattern") {
	case "path":
		e.Path = parse(f, "path", f.required("path"), decodePath)
	case "glob_pattern":
		if e.Pattern = f.string("pattern"); len(e.Pattern) > maxPatternBytes {
			f.fail(at("pattern", fmt.Errorf("%d bytes long, the limit is %d", len(e.Pattern), maxPatternBytes)))
		}
	case "special":
		value := parse(f, "value", f.required("value"), fieldsOf)
		if value == nil {
			break
		}
		e.Special = value.string("kind")
		if e.Special == "current_working_directory" {
			e.Special = SpecialProjectRoots
		}
		if subpath := value.optionalString("subpath"); subpath != nil {
			e.Subpath = *subpath
		}
		if value.err == nil {
			value.fail(at("kind", oneOf(e.Special, SpecialRoot, SpecialMinimal, SpecialProjectRoots, SpecialTmpdir, SpecialSlashTmp, SpecialUnknown)))
		}
		f.fail(at("value", value.err))
	}
	return e, f.err
}

func (f *fields) optionalPath(name string) Path {
	return parse(f, name, f.optional(name), decodePath)
}

// decodeOldSandbox decodes the form of clients before 0.124: a policy with other names,
// alone or in the member sandboxPolicy.
func decodeOldSandbox(outer *fields) (*Sandbox, error) {
	policy := outer
	if inner := outer.optional("sandboxPolicy"); inner != nil {
		if policy = parse(outer, "sandboxPolicy", inner, fieldsOf); policy == nil {
			return nil, outer.err
		}
	} else if outer.get("type") == nil {
		return nil, missing("permissions")
	}
	s := &Sandbox{Cwd: outer.optionalPath("sandboxPolicyCwd"), WorkspaceRoots: []Path{}}
	if !s.Cwd.IsZero() {
		s.WorkspaceRoots = []Path{s.Cwd}
	}
	kind := policy.choice("type", "read-only", "workspace-write", "danger-full-access", "external-sandbox")
	// One release had a separate read access. It is not worth supporting, and must not be
	// ignored.
	for _, name := range []string{"access", "read_only_access"} {
		if raw := policy.optional(name); raw != nil {
			access, err := fieldsOf(raw)
			if err != nil || access.string("type") != "full-access" {
				return nil, at(name, errNotSupported)
			}
		}
	}
	switch kind {
	case "danger-full-access":
		s.Network = true
	case "external-sandbox":
		network := policy.optionalString("network_access")
		s.Network = network != nil && *network == "enabled"
	case "read-only", "workspace-write":
		s.Network = policy.optionalBool("network_access", false)
		s.Files = &FilePolicy{Entries: []FileEntry{{Access: AccessRead, Special: SpecialRoot}}}
	}
	if kind == "workspace-write" {
		s.decodeOldWorkspace(policy)
	}
	if policy != outer {
		outer.fail(at("sandboxPolicy", policy.err))
	}
	if outer.err == nil {
		outer.fail(s.checkPaths())
	}
	return s, outer.err
}

func (s *Sandbox) decodeOldWorkspace(policy *fields) {
	write := func(e FileEntry) {
		e.Access = AccessWrite
		s.Files.Entries = append(s.Files.Entries, e)
	}
	write(FileEntry{Special: SpecialProjectRoots})
	if !policy.optionalBool("exclude_slash_tmp", false) {
		write(FileEntry{Special: SpecialSlashTmp})
	}
	if !policy.optionalBool("exclude_tmpdir_env_var", false) {
		write(FileEntry{Special: SpecialTmpdir})
	}
	for _, root := range parse(policy, "writable_roots", policy.optional("writable_roots"), decodePaths) {
		write(FileEntry{Path: root})
	}
}

// FullRead reports whether the policy allows reading all files.
func (s *Sandbox) FullRead() bool {
	return s.Files.FullRead() && (s.Within == nil || s.Within.FullRead())
}

// FullWrite reports whether the policy allows writing all files.
func (s *Sandbox) FullWrite() bool {
	return s.Files.FullWrite() && (s.Within == nil || s.Within.FullWrite())
}

// FullRead reports whether the policy allows reading all files.
func (p *FilePolicy) FullRead() bool {
	return p == nil || p.root() != 0 && !slices.ContainsFunc(p.Entries, func(e FileEntry) bool { return e.Access == AccessDeny })
}

// FullWrite reports whether the policy allows writing all files.
func (p *FilePolicy) FullWrite() bool {
	return p == nil || p.root() == AccessWrite &&
		!slices.ContainsFunc(p.Entries, func(e FileEntry) bool { return !e.isRoot() && e.Access != AccessWrite })
}

// root returns the access to the root directory, or 0.
func (p *FilePolicy) root() (access Access) {
	for _, e := range p.Entries {
		if e.isRoot() {
			access = max(access, e.Access)
		}
	}
	if access == AccessDeny {
		return 0
	}
	return access
}

func (e FileEntry) isRoot() bool { return e.Special == SpecialRoot || e.Path.osPath == "/" }
