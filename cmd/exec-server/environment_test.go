//go:build unix

package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestEnvironmentHasNoRelativePaths serves with relative directories in its
// environment, in a directory that is removed: nobody could say what they are
// relative to.
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
	c.handshake(nil)
	for method, params := range map[string]object{
		"environment/info":       {},
		"environmentConfig/read": {"cwd": "file:///", "configPaths": [][]string{{"none"}}, "requirementsPaths": [][]string{}},
	} {
		told, err := json.Marshal(c.call(method, params))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(told), "rel/") {
			t.Errorf("%s tells a relative path: %s", method, told)
		}
	}
	c = connect(t, p)
	if told, err := json.Marshal(c.call("initialize", object{"clientName": "test"})); err != nil || strings.Contains(string(told), "rel/") {
		t.Errorf("initialize tells a relative path: %s, %v", told, err)
	}
}
