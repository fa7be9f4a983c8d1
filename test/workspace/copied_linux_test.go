package workspace

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// pair is a directory, and the one that the server of box shows in its place.
type pair struct {
	*machine
	here, there string
}

func newPair(t *testing.T, m *machine) *pair {
	t.Helper()
	p := &pair{m, m.dir("here"), m.dir("there")}
	needMounts(m, p.here, p.there)
	return p
}

// sync runs push or pull, whose exit code must be code, and returns the lines that it
// prints, each with single spaces.
func (p *pair) sync(code int, command string, flags ...string) []string {
	p.t.Helper()
	r := p.run(slices.Concat([]string{command, "--on", "box"}, flags, []string{p.here})...)
	if r.code != code {
		p.t.Errorf("%s %v: exit code %d, not %d: %s%s", command, flags, r.code, code, r.stdout, r.stderr)
	}
	var lines []string
	for line := range strings.Lines(r.stdout) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}

// prints checks the lines of push or pull.
func (p *pair) prints(found []string, expected ...string) {
	p.t.Helper()
	if !slices.Equal(found, expected) {
		p.t.Errorf("it prints %q, not %q", found, expected)
	}
}

// change writes a file with a time of its own, so that a listing shows the change.
func (p *pair) change(path, content string) {
	p.t.Helper()
	p.write(path, content)
	later := time.Now().Add(time.Duration(len(content)) * time.Hour)
	if err := os.Chtimes(path, later, later); err != nil {
		p.t.Fatal(err)
	}
}

// TestPushAndPull brings changes there and back.
func TestPushAndPull(t *testing.T) {
	forUsers(t, func(t *testing.T, m *machine) {
		p := newPair(t, m)
		m.dir("here/sub")
		m.write(p.here+"/one", "1")
		m.write(p.here+"/sub/two", "2")
		if err := os.Symlink("sub/two", p.here+"/link"); err != nil {
			t.Fatal(err)
		}
		p.prints(p.sync(0, "push", "-n"), "new link", "new one", "new sub/two")
		m.wants(p.there+"/one", "")
		p.prints(p.sync(0, "push"), "new link", "new one", "new sub/two")
		m.wants(p.there+"/sub/two", "2")
		if text, err := os.Readlink(p.there + "/link"); err != nil || text != "sub/two" {
			t.Errorf("the link there is %q, %v", text, err)
		}
		p.prints(p.sync(0, "push"))
		p.prints(p.sync(0, "pull"))

		// Changes there come back, and those here do not go away.
		p.change(p.there+"/one", "changed there")
		p.change(p.there+"/three", "new there")
		p.change(p.here+"/sub/two", "changed here")
		if err := os.Remove(p.there + "/link"); err != nil {
			t.Fatal(err)
		}
		expected := []string{"new three", "update one", "keep link (removed there; --delete removes it here, too)"}
		slices.Sort(expected[:2])
		found := p.sync(0, "pull", "-n")
		slices.Sort(found[:min(2, len(found))])
		p.prints(found, expected...)
		m.wants(p.here+"/three", "")
		p.sync(0, "pull")
		m.wants(p.here+"/one", "changed there")
		m.wants(p.here+"/three", "new there")
		m.wants(p.here+"/sub/two", "changed here")
		m.wants(p.there+"/sub/two", "2")
		if _, err := os.Lstat(p.here + "/link"); err != nil {
			t.Error("pull removed a link without --delete")
		}
		p.prints(p.sync(0, "pull", "--delete"), "delete link")
		if _, err := os.Lstat(p.here + "/link"); err == nil {
			t.Error("pull --delete did not remove the link")
		}
		p.prints(p.sync(0, "push"), "update sub/two")
		m.wants(p.there+"/sub/two", "changed here")

		// Another time alone is no change.
		now := time.Now().Add(time.Minute)
		if err := os.Chtimes(p.there+"/one", now, now); err != nil {
			t.Fatal(err)
		}
		p.prints(p.sync(0, "pull"))
	})
}

// TestConflicts leaves what has changed on both sides until somebody decides.
func TestConflicts(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	p := newPair(t, m)
	m.write(p.here+"/f", "first")
	m.write(p.here+"/other", "other")
	p.sync(0, "push")
	for i, test := range []struct{ decide, command, other string }{
		{"--mine", "push", "pull"},
		{"--mine", "pull", "push"},
		{"--theirs", "pull", "push"},
		{"--theirs", "push", "pull"},
	} {
		mine, theirs := fmt.Sprint("mine ", i), fmt.Sprint("their ", i)
		p.change(p.here+"/f", mine)
		p.change(p.there+"/f", theirs)
		for _, command := range []string{"push", "pull"} {
			p.prints(p.sync(3, command), "conflict f (changed here and there)")
			m.wants(p.here+"/f", mine)
			m.wants(p.there+"/f", theirs)
		}
		p.sync(0, test.command, test.decide)
		p.sync(0, test.other)
		right := map[string]string{"--mine": mine, "--theirs": theirs}[test.decide]
		m.wants(p.here+"/f", right)
		m.wants(p.there+"/f", right)
	}
	// The same change on both sides is none.
	p.change(p.here+"/f", "same")
	p.write(p.there+"/f", "same")
	p.prints(p.sync(0, "pull"))
	// Nor does a removal win over a change.
	p.change(p.there+"/f", "changed again")
	if err := os.Remove(p.here + "/f"); err != nil {
		t.Fatal(err)
	}
	p.prints(p.sync(3, "pull", "--delete"), "conflict f (removed here, changed there)")
	p.prints(p.sync(3, "push", "--delete"), "conflict f (removed here, changed there)")
	m.wants(p.there+"/f", "changed again")
}

// TestAnotherDirectory forgets what it knew of a directory that is not the same any more.
func TestAnotherDirectory(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	p := newPair(t, m)
	m.write(p.here+"/f", "kept")
	p.sync(0, "push")
	if err := os.RemoveAll(p.there); err != nil {
		t.Fatal(err)
	}
	m.dir("there")
	p.prints(p.sync(0, "pull", "--delete"))
	m.wants(p.here+"/f", "kept")
	m.write(p.there+"/other", "x")
	p.prints(p.sync(0, "push"), "new f")
	m.wants(p.there+"/f", "kept")
}

// TestOutside writes nothing outside of the directory.
func TestOutside(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	p := newPair(t, m)
	outside := m.dir("outside")
	m.write(outside+"/victim", "untouched")
	if err := os.Symlink(outside, p.here+"/out"); err != nil {
		t.Fatal(err)
	}
	m.dir("there/out")
	m.write(p.there+"/out/victim", "evil")
	m.write(p.there+"/out/evil", "evil")
	m.write(p.there+"/good", "good")
	p.sync(1, "pull")
	p.sync(1, "pull", "--theirs", "--delete")
	m.wants(p.here+"/good", "good")
	m.wants(outside+"/victim", "untouched")
	m.wants(outside+"/evil", "")
}

// TestFailed counts what was copied when something could not be.
func TestFailed(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	p := newPair(t, m)
	m.write(p.there+"/good", "good")
	m.dir("there/taken")
	m.write(p.there+"/taken/file", "file")
	if err := os.Symlink("elsewhere", p.here+"/taken"); err != nil {
		t.Fatal(err)
	}
	m.fails(1, "1 of 2 files pulled", "pull", "--on", "box", p.here)
	m.wants(p.here+"/good", "good")
}

// TestGit leaves out what git ignores, on both sides.
func TestGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git")
	}
	m := newMachine(t, os.Geteuid())
	p := newPair(t, m)
	m.fails(1, "ask git about the files", "push", "--on", "box", "--files", "git", p.here)
	if out, err := exec.Command("git", "init", "-q", p.here).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}
	m.write(p.here+"/.gitignore", "build/\n")
	m.write(p.here+"/f", "content")
	m.dir("here/build")
	m.write(p.here+"/build/out", "made here")
	p.sync(0, "push", "--files", "git")
	m.wants(p.there+"/f", "content")
	m.wants(p.there+"/build/out", "")
	if _, err := os.Stat(p.there + "/.git/HEAD"); err != nil {
		t.Error(err)
	}
	m.dir("there/build")
	m.write(p.there+"/build/other", "made there")
	m.write(p.there+"/new", "new")
	p.prints(p.sync(0, "pull"), "new new")
	m.wants(p.here+"/new", "new")
	m.wants(p.here+"/build/other", "")
}

// TestWithheld keeps the other machine from having git or Codex run programs here.
func TestWithheld(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	p := newPair(t, m)
	m.dir("here/.git")
	m.write(p.here+"/.git/HEAD", "ref: refs/heads/main")
	m.write(p.here+"/.git/config", "mine")
	p.sync(0, "push")
	for _, dir := range []string{".git/hooks", ".git/refs", ".git/modules", ".git/rebase-merge", ".GIT", "a", "a/.git ", "b", "b/.codex"} {
		m.dir("there/" + dir)
	}
	withheld := []string{
		".GIT/config", ".git/config", ".git/config.worktree", ".git/hooks/pre-commit", ".git/modules/config",
		".git/rebase-merge/git-rebase-todo", "a/.git /config", "b/.codex/config.toml", "b/.git",
	}
	for _, name := range append([]string{".git/HEAD", ".git/hooks/x.sample", ".git/refs/made", "b/.gitignore"}, withheld...) {
		p.change(p.there+"/"+name, "theirs: "+name)
	}
	for _, flags := range [][]string{nil, {"--theirs", "--delete"}} {
		var lines []string
		for _, line := range p.sync(0, "pull", flags...) {
			if name, ok := strings.CutPrefix(line, "withheld "); ok {
				lines = append(lines, strings.TrimSuffix(name, " (git or Codex would run here what it says; look at it, and copy it with cp)"))
			}
		}
		p.prints(lines, withheld...)
	}
	m.wants(p.here+"/.git/config", "mine")
	m.wants(p.here+"/.git/HEAD", "theirs: .git/HEAD")
	m.wants(p.here+"/.git/refs/made", "theirs: .git/refs/made")
	m.wants(p.here+"/b/.gitignore", "theirs: b/.gitignore")
	for _, name := range withheld {
		if name != ".git/config" {
			m.wants(p.here+"/"+name, "")
		}
	}
	// What was changed here goes there, as before.
	p.change(p.here+"/.git/config", "mine, again")
	p.sync(0, "push", "--mine")
	m.wants(p.there+"/.git/config", "mine, again")
}

// TestConnect shows and pushes a workspace before the client has its connection.
func TestConnect(t *testing.T) {
	forUsers(t, func(t *testing.T, m *machine) {
		p := newPair(t, m)
		m.write(p.here+"/f", "pushed")
		m.configure([]string{"connect", "--workspace", p.here + "=" + p.there, "--push", "--", "sh"})
		if out := m.must("run", "--on", "box", "-w", p.here, "--", "sh", "-c", "pwd; cat f; echo more >>f"); out != p.here+"\npushed" {
			t.Errorf("the command prints %q", out)
		}
		p.prints(p.sync(0, "pull"), "update f")
		m.wants(p.here+"/f", "pushedmore\n")
		// What was changed there is not lost by the next push.
		p.change(p.there+"/f", "changed there")
		m.must("run", "--on", "box", "--", "true")
		m.wants(p.there+"/f", "changed there")
		if out := m.run("connect", "--push", "--", "sh"); out.code != 2 {
			t.Errorf("connect --push without --workspace: %+v", out)
		}
		if parts, _ := filepath.Glob(p.there + "/.exec-server-*"); len(parts) > 0 {
			t.Errorf("parts are left: %q", parts)
		}
	})
}
