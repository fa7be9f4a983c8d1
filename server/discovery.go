package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"execserver/internal/filesystem"
	"execserver/internal/rpc"
	"execserver/internal/sys"
	"execserver/protocol"
)

// Bounds of a discovery, so that clients accept the answer.
const (
	maxDiscoveredFile  = 1 << 20 // bytes of one file
	maxDiscoveredBytes = 8 << 20 // of all files; escaped, they are at most six times as long

	maxDiscoveryWarnings = 100 // for one root
)

// discoveryWalk bounds the search below a root.
var discoveryWalk = filesystem.WalkOptions{
	MaxDepth: 6, MaxDirectories: 2_000, MaxEntries: 20_000, MaxPathBytes: 4 << 20,
	FollowDirectorySymlinks: true, StayInside: true,
}

// pluginManifests are the paths of a plugin's manifest, in order of precedence.
var pluginManifests = []string{
	filepath.Join(".codex-plugin", "plugin.json"),
	filepath.Join(".claude-plugin", "plugin.json"),
	filepath.Join(".cursor-plugin", "plugin.json"),
}

// discoverRoots serves capabilityRoots/discoverV1.
func (h *fileHandler) discoverRoots(r *rpc.Request, p protocol.DiscoverRootsParams) {
	h.answerLarge(r, func(fits func(int) bool) (any, error) {
		if !fits(2 * maxDiscoveredBytes) {
			return nil, nil
		}
		d := discovery{ctx: r.Context(), budget: maxDiscoveredBytes}
		result := protocol.DiscoveredRoots{Roots: make([]protocol.DiscoveredRoot, len(p.Roots))}
		for i, root := range p.Roots {
			policy, err := h.filePolicy(protocol.MethodDiscoverRoots, root.Sandbox)
			switch {
			case err != nil:
				result.Roots[i] = failedRoot(root, err)
			case policy != nil:
				result.Roots[i] = h.discoverConfined(&d, root, policy)
			default:
				result.Roots[i] = d.root(root)
			}
			if r.Context().Err() != nil {
				return nil, r.Context().Err()
			}
		}
		return result, nil
	})
}

// discoverConfined reads a capability root in a sandbox. The answer of the helper counts
// against the limit of the whole request.
func (h *fileHandler) discoverConfined(d *discovery, root protocol.CapabilityRoot, policy *protocol.Sandbox) protocol.DiscoveredRoot {
	leftOut := emptyRoot(root)
	leftOut.Warnings = append(leftOut.Warnings, protocol.Shorten(
		fmt.Sprintf("capability root %s is left out: there is too much to tell", root.Path)))
	if d.budget <= 0 {
		return leftOut
	}
	root.Sandbox = nil // it is that of the helper
	params, err := json.Marshal(protocol.DiscoverRootsParams{Roots: []protocol.CapabilityRoot{root}})
	var answer rawAnswer
	if err == nil {
		answer, err = h.sandbox.call(d.ctx, policy, protocol.MethodDiscoverRoots, params, protocol.MaxAnswerBytes)
	}
	if err != nil {
		return failedRoot(root, err)
	}
	if d.budget -= len(answer); d.budget < 0 {
		return leftOut
	}
	var found protocol.DiscoveredRoots
	if err := json.Unmarshal(answer, &found); err != nil || len(found.Roots) != 1 {
		return failedRoot(root, errors.New("the helper's answer cannot be understood"))
	}
	return found.Roots[0]
}

// discovery reads the files of one request.
type discovery struct {
	ctx    context.Context
	budget int // bytes that the discovery may still read
	tree   *filesystem.Tree
	out    *protocol.DiscoveredRoot
}

// emptyRoot is the result for a root in which nothing has been found yet.
func emptyRoot(root protocol.CapabilityRoot) protocol.DiscoveredRoot {
	return protocol.DiscoveredRoot{
		ID: root.ID, Path: root.Path,
		Skills: []protocol.DiscoveredSkill{}, NamespaceManifests: []protocol.DiscoveredFile{}, Warnings: []string{},
	}
}

// failedRoot is the result for a root that could not be read.
func failedRoot(root protocol.CapabilityRoot, err error) protocol.DiscoveredRoot {
	failed := emptyRoot(root)
	text := protocol.Shorten(fmt.Sprintf("failed to inspect capability root %s: %s", root.Path, err))
	failed.Error = &text
	return failed
}

func (d *discovery) root(root protocol.CapabilityRoot) protocol.DiscoveredRoot {
	out := emptyRoot(root)
	d.out = &out
	if err := d.inspect(root); err != nil {
		text := protocol.Shorten(err.Error())
		out.Error = &text
	}
	return out
}

func (d *discovery) inspect(root protocol.CapabilityRoot) error {
	dir, err := root.Path.OSPath()
	var m filesystem.Metadata
	if err == nil {
		m, err = filesystem.GetMetadata(d.ctx, dir, filesystem.Follow)
	}
	if err != nil {
		return fmt.Errorf("failed to inspect capability root %s: %s", root.Path, sys.ErrorText(err))
	}
	if !m.IsDirectory {
		return fmt.Errorf("capability root %s is not a directory", root.Path)
	}
	if d.tree, err = filesystem.OpenTree(d.ctx, dir); err != nil {
		return fmt.Errorf("failed to inspect capability root %s: %s", root.Path, sys.ErrorText(err))
	}
	defer d.tree.Close()
	d.plugin(dir)
	found, err := filesystem.Walk(d.ctx, dir, discoveryWalk)
	if err != nil {
		return fmt.Errorf("failed to inspect capability root %s: %s", root.Path, sys.ErrorText(err))
	}
	slices.SortFunc(found.Entries, func(a, b filesystem.WalkEntry) int { return strings.Compare(a.Path, b.Path) })
	best := make(map[string]int) // index of the manifest that counts, for each directory
	for _, e := range found.Entries {
		if dir, i := manifestOf(e); i >= 0 {
			if have, ok := best[dir]; !ok || i < have {
				best[dir] = i
			}
		}
	}
	for _, e := range found.Entries {
		switch dir, i := manifestOf(e); {
		case e.IsDirectory:
		case filepath.Base(e.Path) == "SKILL.md":
			d.skill(e.Path)
		case i >= 0 && best[dir] == i:
			if manifest := d.read(e.Path); manifest != nil {
				d.out.NamespaceManifests = append(d.out.NamespaceManifests, *manifest)
			}
		}
	}
	for _, e := range found.Errors {
		d.warn("failed to read directory %s: %s", root.Path.WithOSPath(e.Path), sys.ErrorText(e.Err))
	}
	if found.Truncated {
		d.warn("capability root %s is too large to be looked at as a whole", root.Path)
	}
	return nil
}

// manifestOf returns the directory of a manifest and its index in pluginManifests; i is
// -1 for other files.
func manifestOf(e filesystem.WalkEntry) (dir string, i int) {
	for i, name := range pluginManifests {
		if dir, ok := strings.CutSuffix(e.Path, string(filepath.Separator)+name); ok && !e.IsDirectory {
			return dir, i
		}
	}
	return "", -1
}

// plugin reads the plugin that a root may be.
func (d *discovery) plugin(dir string) {
	for _, name := range pluginManifests {
		manifest := d.read(filepath.Join(dir, name))
		if manifest == nil {
			continue
		}
		var names struct{ MCPServers, Apps json.RawMessage }
		_ = json.Unmarshal([]byte(manifest.Contents), &names) // an invalid manifest names nothing
		d.out.Plugin = &protocol.DiscoveredPlugin{
			Manifest:   *manifest,
			MCPConfig:  d.named(dir, manifest.Path, "mcpServers", names.MCPServers, ".mcp.json"),
			AppsConfig: d.named(dir, manifest.Path, "apps", names.Apps, ".app.json"),
		}
		return
	}
}

// named reads the file that a member of a manifest names, or the usual one. A member that
// is not a name holds the content itself.
func (d *discovery) named(dir string, manifest protocol.Path, member string, value json.RawMessage, usual string) *protocol.DiscoveredFile {
	var name *string
	if json.Unmarshal(value, &name) != nil && len(value) > 0 {
		return nil
	}
	switch {
	case name == nil:
	case !strings.HasPrefix(*name, "./"):
		d.warn("ignoring %s in %s: path must start with `./`", member, manifest)
	case !filepath.IsLocal(filepath.FromSlash(*name)):
		d.warn("ignoring %s in %s: path must not leave the plugin", member, manifest)
	default:
		usual = filepath.FromSlash(*name)
	}
	return d.read(filepath.Join(dir, usual))
}

func (d *discovery) skill(path string) {
	instructions := d.read(path)
	if instructions == nil {
		return
	}
	d.out.Skills = append(d.out.Skills, protocol.DiscoveredSkill{
		Instructions: *instructions,
		Metadata:     d.read(filepath.Join(filepath.Dir(path), "agents", "openai.yaml")),
	})
}

// read reads a text file. It returns nil if there is none, or if the answer cannot hold
// it.
func (d *discovery) read(path string) *protocol.DiscoveredFile {
	spelled := d.out.Path.WithOSPath(path)
	if d.budget -= 4 * len(path); d.budget <= 0 {
		d.warn("capability file %s is left out: there is too much to tell", spelled)
		return nil
	}
	data, err := d.tree.ReadFile(d.ctx, path, int64(min(d.budget, maxDiscoveredFile)))
	var refusal *filesystem.Refusal
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.As(err, &refusal): // missing, or a directory
		return nil
	case err != nil:
		d.warn("failed to read capability file %s: %s", spelled, sys.ErrorText(err))
		return nil
	case !utf8.Valid(data):
		d.warn("capability file %s is not UTF-8", spelled)
		return nil
	}
	d.budget -= len(data)
	return &protocol.DiscoveredFile{Path: spelled, Contents: string(data)}
}

func (d *discovery) warn(format string, args ...any) {
	if len(d.out.Warnings) == maxDiscoveryWarnings {
		return
	}
	d.out.Warnings = append(d.out.Warnings, protocol.Shorten(fmt.Sprintf(format, args...)))
}
