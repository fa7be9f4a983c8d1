package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"execserver/internal/sandbox/launcher"
	"execserver/protocol"
)

// TestResolve checks the mounts to which policies resolve, in their order. Paths are
// relative to the directory of the test.
func TestResolve(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ws/.git", "ws/a/b/c", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"ws/x.env": "", "ws/a/y.env": "", "other/.git": "gitdir: meta\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string, access protocol.Access) protocol.FileEntry {
		return protocol.FileEntry{Access: access, Path: protocol.URIPath(filepath.Join(dir, name))}
	}
	const read, write, deny = protocol.AccessRead, protocol.AccessWrite, protocol.AccessDeny
	root := protocol.FileEntry{Access: read, Special: protocol.SpecialRoot}
	project := protocol.FileEntry{Access: write, Special: protocol.SpecialProjectRoots}
	const protectedWS = "w ws, r ws/.agents?, r ws/.aws?, r ws/.codex?, r ws/.git"
	for name, tt := range map[string]struct {
		entries []protocol.FileEntry
		roots   []protocol.Path
		want    string
	}{
		"read-only":       {[]protocol.FileEntry{root}, nil, ""},
		"workspace":       {[]protocol.FileEntry{root, project}, nil, protectedWS},
		"no workspace":    {[]protocol.FileEntry{root, project}, []protocol.Path{}, ""},
		"missing root":    {[]protocol.FileEntry{root, at("none", write)}, nil, ""},
		"released":        {[]protocol.FileEntry{root, project, at("ws/.git", write)}, nil, "w ws, r ws/.agents?, r ws/.aws?, r ws/.codex?, w ws/.git"},
		"missing denied":  {[]protocol.FileEntry{root, project, at("ws/n/m", deny)}, nil, protectedWS + ", h ws/n?"},
		"nested":          {[]protocol.FileEntry{root, project, at("ws/a", read), at("ws/a/b", write)}, nil, protectedWS + ", r ws/a, w ws/a/b, r ws/a/b/.agents?, r ws/a/b/.aws?, r ws/a/b/.codex?, r ws/a/b/.git?"},
		"deep":            {[]protocol.FileEntry{root, project, at("ws/a/b/c", deny), at("ws/a/y.env", read)}, nil, protectedWS + ", w ws/a, r ws/a/y.env, w ws/a/b, h ws/a/b/c"},
		"root in root":    {[]protocol.FileEntry{root, project, at("ws/a/b", write)}, nil, protectedWS + ", w ws/a, w ws/a/b, r ws/a/b/.agents?, r ws/a/b/.aws?, r ws/a/b/.codex?, r ws/a/b/.git?"},
		"on the way":      {[]protocol.FileEntry{root, project, at("ws/a/b", deny)}, nil, protectedWS + ", w ws/a, h ws/a/b"},
		"a root below":    {[]protocol.FileEntry{root, at("", write), at("ws/a/b", write), at("ws", read)}, nil, "r .agents?, r .aws?, r .codex?, r .git?, w " + dir + ", r ws, w ws/a/b, r ws/a/b/.agents?, r ws/a/b/.aws?, r ws/a/b/.codex?, r ws/a/b/.git?"},
		"below denied":    {[]protocol.FileEntry{root, at("ws", deny), at("ws/a", read)}, nil, "h ws"},
		"pattern":         {[]protocol.FileEntry{root, project, {Access: deny, Pattern: "**/*.env"}}, nil, protectedWS + ", h ws/x.env, h ws/a/y.env"},
		"a .git file":     {[]protocol.FileEntry{root, at("other", write)}, nil, "w other, r other/.agents?, r other/.aws?, r other/.codex?, r other/.git, r other/meta?"},
		"upwards is void": {[]protocol.FileEntry{root, {Access: write, Special: protocol.SpecialProjectRoots, Subpath: "../other"}}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := &protocol.Sandbox{Files: &protocol.FilePolicy{Entries: tt.entries}, WorkspaceRoots: tt.roots}
			p, err := resolve(s, Context{Cwd: filepath.Join(dir, "ws")})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range p.mounts {
				text := map[launcher.MountKind]string{
					launcher.MountReadOnly: "r ", launcher.MountWritable: "w ", launcher.MountHidden: "h ",
				}[m.Kind] + strings.TrimPrefix(m.Path, dir+"/")
				if p.missing[m.Path] {
					text += "?"
				}
				got = append(got, text)
			}
			var want []string
			if tt.want != "" {
				want = strings.Split(tt.want, ", ")
			}
			byDepth := func(a, b string) int {
				if d := strings.Count(a, "/") - strings.Count(b, "/"); d != 0 {
					return d
				}
				return strings.Compare(a[2:], b[2:])
			}
			slices.SortFunc(want, byDepth)
			slices.SortFunc(got, byDepth)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
