//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"execserver/protocol"
)

// workspaceWrite returns the sandbox that clients request by default, with dir as the
// workspace.
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

// startInSandbox measures the same as startToClosed, in the default sandbox.
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
	if err := confinedMemory(ctx, s, c, sandbox, m); err != nil {
		return err
	}
	return latencies(ctx, m, "start to closed", startsConfined, 0, func() error {
		p, params := c.newProc(false, "/bin/true")
		params.Sandbox = sandbox
		if _, err := c.call(ctx, protocol.MethodStart, params); err != nil {
			return err
		}
		return p.wait(ctx)
	})
}

// confinedMemory measures the memory that stays resident besides a command in a sandbox:
// the launcher here, and whatever the released server leaves.
func confinedMemory(ctx context.Context, s *server, c *client, sandbox json.RawMessage, m *sample) error {
	all := func(int) bool { return true }
	before := s.tree(all)
	p, params := c.newProc(false, "/bin/sleep", "10000")
	params.Sandbox = sandbox
	if _, err := c.call(ctx, protocol.MethodStart, params); err != nil {
		return err
	}
	if err := settle(ctx); err != nil {
		return err
	}
	kB := 0
	for _, pid := range s.tree(all) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || slices.Contains(before, pid) || strings.HasPrefix(string(text), "Name:\tsleep\n") {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				own, _ := strconv.Atoi(strings.Fields(rest)[0])
				kB += own
			}
		}
	}
	m.add("resident beside a command", "MB", lower, float64(kB)*1024/1e6)
	return c.terminate(ctx, []*proc{p})
}
