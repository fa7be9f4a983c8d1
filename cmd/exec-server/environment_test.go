//go:build unix

package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestEnvironmentHasNoRelativePaths starts a server in a directory that is removed, with
// relative directories in its environment. The server must not report paths that are
// relative to nothing.
func TestEnvironmentHasNoRelativePaths(t *testing.T) {
	dir := t.TempDir() + "/gone"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := startServer(dir, []string{"TMPDIR=rel/tmp", "HOME=rel/home", "CODEX_HOME=rel/codex", "PWD=" + dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	c := connect(t, p)
	c.handshake("")
	for method, params := range map[string]object{
		"environment/info":       {},
		"environmentConfig/read": {"cwd": "file:///", "configPaths": [][]string{{"none"}}, "requirementsPaths": [][]string{}},
	} {
		var told json.RawMessage
		c.call(method, params, &told)
		if strings.Contains(string(told), "rel/") {
			t.Errorf("%s tells a relative path: %s", method, told)
		}
	}
	c = connect(t, p)
	var told json.RawMessage
	if c.call("initialize", object{"clientName": "test"}, &told); strings.Contains(string(told), "rel/") {
		t.Errorf("initialize tells a relative path: %s", told)
	}
}
