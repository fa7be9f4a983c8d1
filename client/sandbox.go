package client

import (
	"encoding/json"
	"slices"

	"execserver/protocol"
)

// Sandbox confines a process and its descendants. They can read every file, secrets of the user
// included, and write only to the listed directories. They have no network unless Network is set.
type Sandbox struct {
	// Workspace permits writing to the working directory, /tmp, and the directory in TMPDIR.
	Workspace bool
	// Write lists more directories for writing. A relative path is relative to Info.Dir.
	Write []string
	// Network permits the use of the network.
	Network bool
}

// resolves reports whether the machine knows what the paths are relative to.
func (s *Sandbox) resolves(i *Info) bool {
	return !slices.ContainsFunc(s.Write, func(name string) bool { return i.resolve(name) == "" })
}

// wire returns the sandbox for process/start of a process in dir.
func (s *Sandbox) wire(i *Info, dir string) json.RawMessage {
	type object map[string]any
	entries := []object{}
	add := func(access string, path object) {
		entries = append(entries, object{"path": path, "access": access})
	}
	special := func(kind string) object {
		return object{"type": "special", "value": object{"kind": kind}}
	}
	add("read", special(protocol.SpecialRoot))
	if s.Workspace {
		for _, kind := range []string{protocol.SpecialProjectRoots, protocol.SpecialSlashTmp, protocol.SpecialTmpdir} {
			add("write", special(kind))
		}
	}
	for _, name := range s.Write {
		add("write", object{"type": "path", "path": i.uri(i.resolve(name))})
	}
	network := "restricted"
	if s.Network {
		network = "enabled"
	}
	raw, err := json.Marshal(object{
		"permissions": object{
			"type": "managed", "network": network,
			"file_system": object{"type": "restricted", "entries": entries},
		},
		"cwd": i.uri(dir), "workspaceRoots": []protocol.Path{i.uri(dir)}, "windowsSandboxLevel": "disabled",
	})
	if err != nil {
		panic("client: a sandbox is not JSON: " + err.Error()) // it holds nothing but strings
	}
	return raw
}
