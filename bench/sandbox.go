//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
)

// workspaceWrite is the sandbox that clients ask for by default, with a
// directory as the workspace.
func workspaceWrite(dir string) json.RawMessage {
	special := func(kind, more, access string) string {
		return fmt.Sprintf(`{"path":{"type":"special","value":{"kind":%q%s}},"access":%q}`, kind, more, access)
	}
	entries := special("root", "", "read") + "," + special("project_roots", "", "write") + "," +
		special("slash_tmp", "", "write") + "," + special("tmpdir", "", "write")
	for _, name := range []string{".git", ".agents", ".codex", ".aws"} {
		entries += "," + special("project_roots", fmt.Sprintf(`,"subpath":%q`, name), "read")
	}
	return json.RawMessage(fmt.Sprintf(`{"permissions":{"type":"managed","network":"restricted","file_system":`+
		`{"type":"restricted","entries":[%s]}},"cwd":"file://%s","workspaceRoots":["file://%[2]s"],"windowsSandboxLevel":"disabled"}`,
		entries, dir))
}

// startInSandbox measures what startToClosed does, in the default sandbox.
func startInSandbox(ctx context.Context, s *server, m *sample) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/var/tmp", "exec-server-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	sandbox := workspaceWrite(dir)
	return latencies(ctx, m, "start to closed", startsConfined, 0, func() error {
		p, params := c.newProc(false, "/bin/true")
		params.Sandbox = sandbox
		if _, err := c.call(ctx, "process/start", params); err != nil {
			return err
		}
		return p.wait(ctx)
	})
}
