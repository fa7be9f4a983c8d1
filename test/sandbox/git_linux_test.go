package sandbox_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestGitIndirections protects the directories that a .git refers to: those of submodules
// and worktrees, and the one that a worktree shares with its repository.
func TestGitIndirections(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		const busy = "busy"
		area := filepath.Join(m.base, "area")
		files := map[string]string{
			// A submodule, one in that, and a worktree of the repository.
			m.ws + "/.git/HEAD":                              "ref: refs/heads/main\n",
			m.ws + "/.git/modules/libs/sub/HEAD":             "",
			m.ws + "/.git/modules/libs/sub/config":           "[core]\n\trepositoryformatversion = 0\n\tworktree = ../../../../libs/sub\n",
			m.ws + "/libs/sub/.git":                          "gitdir: ../../.git/modules/libs/sub\n",
			m.ws + "/.git/modules/libs/sub/modules/n/HEAD":   "",
			m.ws + "/.git/modules/libs/sub/modules/n/config": "[core]\n\tworktree = \"../../../../../../libs/sub/n\"\n",
			m.ws + "/libs/sub/n/.git":                        "gitdir: ../../../.git/modules/libs/sub/modules/n\n",
			m.ws + "/.git/worktrees/feature/gitdir":          m.ws + "/feature/.git\n",
			m.ws + "/feature/.git":                           "gitdir: " + m.ws + "/.git/worktrees/feature\n",
			// Another repository, next to a worktree of it.
			area + "/main/.git/HEAD":                     "ref: refs/heads/main\n",
			area + "/main/.git/config":                   "",
			area + "/main/.git/hooks/sample":             "",
			area + "/main/.git/worktrees/tree/HEAD":      "",
			area + "/main/.git/worktrees/tree/commondir": "../..\n",
			area + "/main/.git/worktrees/tree/gitdir":    area + "/tree/.git\n",
			area + "/tree/.git":                          "gitdir: " + area + "/link/../main/.git/worktrees/tree\n",
			area + "/else/deep/x":                        "",
		}
		for name, text := range files {
			m.mkdir(filepath.Dir(name))
			m.write(name, text)
		}
		m.must(os.MkdirAll(filepath.Join(area, "link"), 0o755))
		m.own(m.base)
		m.says(m.workspaceWrite(),
			[2]string{"echo gitdir: x >libs/sub/.git", readOnly}, [2]string{"rm libs/sub/.git", busy},
			[2]string{"mv libs/sub moved", busy}, [2]string{"mv libs moved", busy}, [2]string{"touch libs/sub/x", "done"},
			[2]string{"mv dir libs/sub/dir && mv libs/sub/dir .", "done"},
			[2]string{"echo x >libs/sub/n/.git", readOnly}, [2]string{"mv libs/sub/n libs/sub/m", busy},
			[2]string{"echo x >feature/.git", readOnly}, [2]string{"mv feature moved", busy}, [2]string{"touch feature/x", "done"})
		m.says(m.workspaceWrite(at(area, "write"), at(area+"/tree", "write")),
			[2]string{"touch " + area + "/tree/x", "done"}, [2]string{"touch " + area + "/main/x", "done"},
			[2]string{"touch " + area + "/main/.git/worktrees/tree/x", readOnly},
			[2]string{"touch " + area + "/main/.git/hooks/x", readOnly}, [2]string{"echo x >" + area + "/main/.git/config", readOnly},
			[2]string{"mv " + area + "/main " + area + "/moved", busy})
		// A policy that grants the repository grants the directory of the worktree.
		m.says(m.policy("restricted", special("root", "read"), at(area+"/tree", "write"), at(area+"/main/.git", "write")),
			[2]string{"touch " + area + "/main/.git/worktrees/tree/index.lock", "done"}, [2]string{"rm " + area + "/main/.git/worktrees/tree/index.lock", "done"},
			[2]string{"touch " + area + "/tree/x", "done"}, [2]string{"echo x >" + area + "/tree/.git", readOnly}, [2]string{"touch " + area + "/main/x", readOnly})
		// A workspace in a repository that has a submodule there.
		sandbox := m.workspaceWrite()
		sandbox["workspaceRoots"] = []string{uri(m.ws + "/libs")}
		m.says(sandbox, [2]string{"touch libs/x", "done"}, [2]string{"echo x >libs/sub/.git", readOnly})
		// What git does not know of is left alone, and nothing is waited for.
		m.write(m.ws+"/.git/modules/libs/sub/config", "[core]\n\tworktree = ../../../../none\n")
		m.write(m.ws+"/.git/worktrees/feature/gitdir", m.ws+"/out/.git\n")
		m.must(os.Symlink(m.outside, m.ws+"/out"))
		m.says(m.workspaceWrite(), [2]string{"echo x >feature/.git", "done"})
	})
}

// TestLeasedGitFile has a program outside with a lease on a file that says what to protect. No
// command starts without the protection.
func TestLeasedGitFile(t *testing.T) {
	everyUser(t, func(t *testing.T, m *machine) {
		m.mkdir(m.ws + "/.git/worktrees/feature")
		m.mkdir(m.ws + "/feature")
		m.write(m.ws+"/.git/HEAD", "ref: refs/heads/main\n")
		m.write(m.ws+"/.git/worktrees/feature/gitdir", m.ws+"/feature/.git\n")
		m.write(m.ws+"/feature/.git", "gitdir: "+m.ws+"/.git/worktrees/feature\n")
		m.start()
		f, err := os.Open(m.ws + "/.git/worktrees/feature/gitdir")
		m.must(err)
		defer f.Close()
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
			t.Skip("no leases here: ", err)
		}
		m.refuses(m.workspaceWrite(), -32602, "find out what to protect of git")
		m.must(f.Close())
		m.says(m.workspaceWrite(), [2]string{"echo x >feature/.git", readOnly})
	})
}
