package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"execserver/internal/testkit"
)

// TestSystemVersion checks that the version is that of the tag, and otherwise the day and the commit.
func TestSystemVersion(t *testing.T) {
	testkit.System(t, "git")
	script, err := filepath.Abs("../version")
	if err != nil {
		t.Fatal(err)
	}
	repository := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		command := exec.Command(name, args...)
		command.Dir = repository
		command.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_COMMITTER_DATE=2026-11-23T23:30:00-0200",
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("git", "init", "-q")
	run("git", "commit", "-q", "--allow-empty", "-m", "first")
	if got := run(script); !regexp.MustCompile(`^2026-11-24-[0-9a-f]{7,}$`).MatchString(got) {
		t.Errorf("without a tag: %s", got)
	}
	run("git", "tag", "v1.2.3")
	if got := run(script); got != "v1.2.3" {
		t.Errorf("at a tag: %s", got)
	}
	run("git", "commit", "-q", "--allow-empty", "-m", "second")
	if got := run(script); !regexp.MustCompile(`^v1\.2\.3-1-g[0-9a-f]{7,}$`).MatchString(got) {
		t.Errorf("after a tag: %s", got)
	}
}
