package main

import (
	"slices"
	"strings"
)

// plainOfGit are the names in a repository that git only reads as data. Among the others
// are its configuration, hooks, and unfinished rebases, which name programs that git runs.
var plainOfGit = []string{
	"HEAD", "ORIG_HEAD", "FETCH_HEAD", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "AUTO_MERGE",
	"COMMIT_EDITMSG", "MERGE_MSG", "MERGE_MODE", "SQUASH_MSG", "TAG_EDITMSG", "NOTES_EDITMSG",
	"description", "index", "info", "logs", "objects", "packed-refs", "refs", "shallow",
}

// runsHere reports whether a file could have git or Codex run programs, because it is in a
// repository, or is one (a file or a link .git leads to a repository elsewhere), or because
// it is among what Codex reads in a project: servers to start, hooks, skills.
func runsHere(name string) bool {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		if isNamed(part, ".codex") || isNamed(part, ".agents") {
			return true
		}
		if !isNamed(part, ".git") && !isNamed(part, "git~1") {
			continue
		}
		in := parts[i+1:]
		sample := len(in) == 2 && in[0] == "hooks" && strings.HasSuffix(in[1], ".sample")
		if len(in) == 0 || !sample && !slices.Contains(plainOfGit, in[0]) {
			return true
		}
	}
	return false
}

// isNamed reports whether some file system takes a name for another: without regard to
// case, as macOS does without characters that are not visible, and as Windows does with
// dots, spaces or a stream at the end.
func isNamed(name, other string) bool {
	visible := strings.Map(func(r rune) rune {
		switch {
		case r >= 0x200c && r <= 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x206a && r <= 0x206f, r == 0xfeff:
			return -1
		}
		return r
	}, name)
	visible, _, _ = strings.Cut(visible, ":")
	visible = strings.TrimRight(visible, ". ")
	return strings.EqualFold(visible, other)
}

// withhold leaves files as they are whose content the other side must not decide.
func (p *syncPlan) withhold(withheld func(name string) bool) {
	for name, step := range p.steps {
		if step != syncConflict && withheld(name) {
			p.steps[name] = syncWithheld
		}
	}
}
