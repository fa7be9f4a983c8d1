package sandbox_test

// object is a JSON object.
type object = map[string]any

func special(kind, access string) object {
	return object{"path": object{"type": "special", "value": object{"kind": kind}}, "access": access}
}

func project(subpath, access string) object {
	return object{
		"path":   object{"type": "special", "value": object{"kind": "project_roots", "subpath": subpath}},
		"access": access, "missing_path_behavior": "skip",
	}
}

func at(path, access string) object {
	return object{"path": object{"type": "path", "path": uri(path)}, "access": access}
}

func glob(pattern string) object {
	return object{"path": object{"type": "glob_pattern", "pattern": pattern}, "access": "deny"}
}

// policy returns a sandbox with these entries and the workspace as its root.
func (m *machine) policy(network string, entries ...object) object {
	return object{
		"permissions": object{
			"type": "managed", "network": network,
			"file_system": object{"type": "restricted", "entries": entries},
		},
		"cwd": uri(m.ws), "workspaceRoots": []string{uri(m.ws)}, "windowsSandboxLevel": "disabled",
	}
}

// workspaceWrite returns a client's default sandbox.
func (m *machine) workspaceWrite(more ...object) object {
	return m.policy("restricted", append([]object{
		special("root", "read"), special("project_roots", "write"), special("slash_tmp", "write"), special("tmpdir", "write"),
		project(".git", "read"), project(".agents", "read"), project(".codex", "read"), project(".aws", "read"),
	}, more...)...)
}
