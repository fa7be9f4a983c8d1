package protocol_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execserver/protocol"
)

// managed is a sandbox with these entries about files.
func managed(entries, more string) string {
	return `{"permissions":{"type":"managed","file_system":{"type":"restricted","entries":[` + entries +
		`]},"network":"restricted"},"windowsSandboxLevel":"disabled"` + more + `}`
}

func TestDecodeSandbox(t *testing.T) {
	read := protocol.FileEntry{Access: protocol.AccessRead, Special: protocol.SpecialRoot}
	write := protocol.FileEntry{Access: protocol.AccessWrite, Special: protocol.SpecialProjectRoots}
	files := func(entries ...protocol.FileEntry) *protocol.FilePolicy {
		return &protocol.FilePolicy{Entries: entries}
	}
	ws, other := protocol.URIPath("/ws"), protocol.URIPath("/other")
	tmp := []protocol.FileEntry{
		{Access: protocol.AccessWrite, Special: protocol.SpecialSlashTmp},
		{Access: protocol.AccessWrite, Special: protocol.SpecialTmpdir},
	}
	const root = `{"path":{"type":"special","value":{"kind":"root"}},"access":"read"}`
	const project = `{"path":{"type":"special","value":{"kind":"project_roots"}},"access":"write"}`
	for name, tt := range map[string]struct {
		raw  string
		want protocol.Sandbox
	}{
		"nothing": {`{"permissions":{"type":"disabled"},"windowsSandboxLevel":"disabled"}`, protocol.Sandbox{Network: true}},
		"network": {
			`{"permissions":{"type":"external","network":"restricted"},"windowsSandboxLevel":"elevated","unknown":1}`, protocol.Sandbox{},
		},
		"unrestricted files": {
			`{"permissions":{"type":"managed","file_system":{"type":"unrestricted"},"network":"enabled"},"windowsSandboxLevel":"disabled"}`,
			protocol.Sandbox{Network: true},
		},
		"roots are missing": {
			managed(root+","+project, `,"cwd":"file:///ws"`), protocol.Sandbox{Files: files(read, write), Cwd: ws},
		},
		"roots are empty": {
			managed(project, `,"cwd":"file:///ws","workspaceRoots":[]`),
			protocol.Sandbox{Files: files(write), Cwd: ws, WorkspaceRoots: []protocol.Path{}},
		},
		"the context of the policy wins": {
			managed(project, `,"cwd":"file:///ws","workspaceRoots":["file:///ws"],"policyContext":{"cwd":"file:///other","workspaceRoots":[]}`),
			protocol.Sandbox{Files: files(write), Cwd: other, WorkspaceRoots: []protocol.Path{}},
		},
		"an override is in the policy": {
			managed(root, `,"sandboxOverride":"escalatedSandboxWithRestrictions"`), protocol.Sandbox{Files: files(read)},
		},
		"every kind of path": {
			managed(`{"path":{"type":"path","path":"file:///x/../other"},"access":"none"},`+
				`{"path":{"type":"glob_pattern","pattern":"**/*.env"},"access":"deny"},`+
				`{"path":{"type":"special","value":{"kind":"current_working_directory","subpath":"a"}},"access":"read","missing_path_behavior":"skip"},`+
				`{"path":{"type":"special","value":{"kind":"unknown","path":":new"}},"access":"write"}`, ""),
			protocol.Sandbox{Files: files(
				protocol.FileEntry{Access: protocol.AccessDeny, Path: other},
				protocol.FileEntry{Access: protocol.AccessDeny, Pattern: "**/*.env"},
				protocol.FileEntry{Access: protocol.AccessRead, Special: protocol.SpecialProjectRoots, Subpath: "a"},
				protocol.FileEntry{Access: protocol.AccessWrite, Special: protocol.SpecialUnknown},
			)},
		},
		"before 0.124": {
			`{"sandboxPolicy":{"type":"workspace-write","writable_roots":["/other"],"network_access":true},"sandboxPolicyCwd":"/ws"}`,
			protocol.Sandbox{
				Network: true, Cwd: protocol.OSPath("/ws"), WorkspaceRoots: []protocol.Path{protocol.OSPath("/ws")},
				Files: files(read, write, tmp[0], tmp[1], protocol.FileEntry{Access: protocol.AccessWrite, Path: protocol.OSPath("/other")}),
			},
		},
		"0.121, without a folder": {
			`{"sandboxPolicy":{"type":"workspace-write","exclude_slash_tmp":true,"exclude_tmpdir_env_var":true},"windowsSandboxLevel":"disabled","additionalPermissions":null}`,
			protocol.Sandbox{Files: files(read, write), WorkspaceRoots: []protocol.Path{}},
		},
		"a policy alone": {`{"type":"read-only"}`, protocol.Sandbox{Files: files(read), WorkspaceRoots: []protocol.Path{}}},
		"full access":    {`{"type":"danger-full-access"}`, protocol.Sandbox{Network: true, WorkspaceRoots: []protocol.Path{}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := protocol.DecodeSandbox(raw(tt.raw), false)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, *got, cmp.Comparer(func(a, b protocol.Path) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecodeSandboxRefuses(t *testing.T) {
	long := strings.Repeat("*", 4097)
	many := strings.Repeat(`{"path":{"type":"special","value":{"kind":"root"}},"access":"read"},`, 513)
	entry := func(path string) string { return managed(`{"path":`+path+`,"access":"deny"}`, "") }
	for name, tt := range map[string]struct {
		raw, text string
		files     protocol.Code // for methods about files; 0: -32602 as well
	}{
		"no permissions":      {raw: `{"windowsSandboxLevel":"disabled"}`, text: "sandbox.permissions: missing"},
		"no level":            {raw: `{"permissions":{"type":"disabled"}}`, text: "sandbox.windowsSandboxLevel: missing"},
		"no network":          {raw: `{"permissions":{"type":"external"},"windowsSandboxLevel":"disabled"}`, text: "sandbox.permissions.network: missing"},
		"no files":            {raw: `{"permissions":{"type":"managed","network":"enabled"},"windowsSandboxLevel":"disabled"}`, text: "sandbox.permissions.file_system: missing"},
		"new permissions":     {raw: `{"permissions":{"type":"new"},"windowsSandboxLevel":"disabled"}`, text: `got "new"`},
		"new level":           {raw: `{"permissions":{"type":"disabled"},"windowsSandboxLevel":"x"}`, text: `got "x"`},
		"mxc":                 {raw: `{"permissions":{"type":"disabled"},"windowsSandboxLevel":"mxc"}`, text: "asks for MXC", files: protocol.CodeInvalidRequest},
		"new access":          {raw: managed(`{"path":{"type":"path","path":"file:///x"},"access":"append"}`, ""), text: `got "append"`},
		"new kind of path":    {raw: entry(`{"type":"inode"}`), text: `got "inode"`},
		"new token":           {raw: entry(`{"type":"special","value":{"kind":"home"}}`), text: `got "home"`},
		"denied unknown":      {raw: entry(`{"type":"special","value":{"kind":"unknown"}}`), text: "denies a special path"},
		"relative path":       {raw: entry(`{"type":"path","path":"sub"}`), text: "neither an absolute path"},
		"foreign path":        {raw: entry(`{"type":"path","path":"file:///C:/x"}`), text: "names no file on a machine with", files: protocol.CodeInvalidRequest},
		"long pattern":        {raw: entry(`{"type":"glob_pattern","pattern":"` + long + `"}`), text: "the limit is 4096"},
		"many entries":        {raw: managed(strings.TrimSuffix(many, ","), ""), text: "the limit is 512"},
		"more permissions":    {raw: `{"permissions":{"type":"disabled"},"additionalPermissions":{},"windowsSandboxLevel":"disabled"}`, text: "sandbox.additionalPermissions: not supported"},
		"restricted old read": {raw: `{"type":"read-only","access":{"type":"restricted"}}`, text: "sandbox.access: not supported"},
		"new old policy":      {raw: `{"sandboxPolicy":{"type":"x"}}`, text: `got "x"`},
		"new override":        {raw: managed("", `,"sandboxOverride":"x"`), text: `sandbox.sandboxOverride: `},
		"no override":         {raw: managed("", `,"sandboxOverride":null`), text: `sandbox.sandboxOverride: `},
		"not an object":       {raw: `7`, text: "sandbox: expected an object, got 7"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, forFiles := range []bool{false, true} {
				want := protocol.Code(protocol.CodeInvalidParams)
				if forFiles && tt.files != 0 {
					want = tt.files
				}
				_, err := protocol.DecodeSandbox(raw(tt.raw), forFiles)
				coded, ok := errors.AsType[*protocol.Error](err)
				if !ok || coded.Code != want || !strings.Contains(coded.Message, tt.text) {
					t.Errorf("for files %v: %v, want %d and %q", forFiles, err, want, tt.text)
				}
			}
		})
	}
}

func TestShortcutsOfPolicies(t *testing.T) {
	entry := func(path, access string) string { return `{"path":` + path + `,"access":"` + access + `"}` }
	const root, rootPath, other = `{"type":"special","value":{"kind":"root"}}`, `{"type":"path","path":"file:///"}`, `{"type":"path","path":"file:///x"}`
	for _, tt := range []struct {
		entries     []string
		read, write bool
	}{
		{[]string{entry(root, "read")}, true, false},
		{[]string{entry(root, "read"), entry(other, "write")}, true, false},
		{[]string{entry(root, "read"), entry(other, "deny")}, false, false},
		{[]string{entry(rootPath, "write")}, true, true},
		{[]string{entry(root, "write"), entry(other, "write")}, true, true},
		{[]string{entry(root, "write"), entry(other, "read")}, true, false},
		{[]string{entry(root, "write"), entry(root, "deny")}, false, false},
		{[]string{entry(other, "write")}, false, false},
		{nil, false, false},
	} {
		s, err := protocol.DecodeSandbox(raw(managed(strings.Join(tt.entries, ","), "")), true)
		if err != nil {
			t.Fatal(err)
		}
		if read, write := s.Files.FullRead(), s.Files.FullWrite(); read != tt.read || write != tt.write {
			t.Errorf("%s: read %v, write %v", tt.entries, read, write)
		}
	}
}
