package server_test

import (
	"fmt"
	"strings"
	"testing"

	"execserver/protocol"
)

// TestDiscoveryInSandboxesIsBounded asks for more than fits into an answer, from roots of which
// each is read in a sandbox.
func TestDiscoveryInSandboxesIsBounded(t *testing.T) {
	t.Parallel()
	dir, hidden := t.TempDir(), t.TempDir()
	for i := range 3 {
		putFile(t, fmt.Sprintf("%s/s%d/SKILL.md", dir, i), strings.Repeat("x", 1_000_000))
	}
	p := connectFiles(t, newConfiningServer(t))
	if err := p.try("fs/getMetadata", fileParams{"path": dir, "sandbox": hiding(hidden)}, nil); err != nil {
		t.Skipf("no sandbox here: %v", err)
	}
	roots := make([]fileParams, 5)
	for i := range roots {
		roots[i] = fileParams{"id": fmt.Sprint(i), "path": "file://" + dir, "sandbox": hiding(hidden)}
	}
	var found protocol.DiscoveredRoots
	p.call("capabilityRoots/discoverV1", fileParams{"roots": roots}, &found)
	for i, root := range found.Roots {
		skills, warned := 3, false
		if i >= 2 { // the first two use 6 MB of 8
			skills, warned = 0, true
		}
		if len(root.Skills) != skills || (len(root.Warnings) > 0) != warned || root.Error != nil {
			t.Errorf("root %d: %d skills, warnings %q, error %v", i, len(root.Skills), root.Warnings, root.Error)
		}
	}
}
