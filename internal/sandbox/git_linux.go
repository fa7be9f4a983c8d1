package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"execserver/protocol"
)

// A .git need not be the repository. A file .git names the directory of a worktree or
// submodule. The file commondir in that directory may name the directory with the
// configuration and the hooks. The repository lists its worktrees and submodules, each of
// which has a .git file for git to follow.

// Limits of the search for one policy.
const (
	maxNested      = 256 // submodules and worktrees
	maxModuleDepth = 8   // directories in the name of a submodule
	maxPointer     = 8 << 10
	maxGitConfig   = 256 << 10
)

// protectGit protects what git reads when it runs in a root: the directory that its .git
// names, and its submodules and worktrees. The root itself may be in a repository.
func (r *resolver) protectGit(region string) error {
	dir := region
	for {
		path := filepath.Join(dir, ".git")
		if info, err := os.Lstat(path); err == nil && (!info.IsDir() || holdsRepository(path)) {
			if r.access(path) == protocol.AccessWrite || isForeign(path, info) {
				return nil // an entry releases it, or other entries decide
			}
			if info.Mode()&fs.ModeSymlink != 0 {
				if path = r.walk(path).real; r.access(path) == protocol.AccessWrite {
					return nil
				}
				if info, err = os.Lstat(path); err != nil {
					return nil
				}
			}
			return r.protectRepository(path, info)
		}
		if dir == "/" || slices.Contains(r.regions, dir) && dir != region {
			return nil // it is protected in its own turn
		}
		dir = filepath.Dir(dir)
	}
}

// holdsRepository reports whether a directory is a git repository, and not just named
// like one.
func holdsRepository(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, "HEAD"))
	return err == nil
}

func (r *resolver) protectRepository(path string, info fs.FileInfo) error {
	dir := path
	if info.Mode().IsRegular() {
		name, ok := strings.CutPrefix(r.firstLine(path), "gitdir:")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil
		}
		dir = from(filepath.Dir(path), name)
	}
	dir, err := r.protectDirectory(dir)
	if err != nil || dir == "" {
		return err
	}
	common := dir
	if name := r.firstLine(filepath.Join(dir, "commondir")); name != "" {
		if common, err = r.protectDirectory(from(dir, name)); err != nil || common == "" {
			return err
		}
	}
	r.protectWorktrees(common)
	r.protectModules(filepath.Join(common, "modules"), 0)
	if dir != common {
		r.protectModules(filepath.Join(dir, "modules"), 0)
	}
	return nil
}

// protectDirectory protects a directory that git reads, and returns its path without
// links. It returns "" if another user decides where the directory is.
func (r *resolver) protectDirectory(dir string) (real string, err error) {
	w := r.walk(dir)
	switch {
	case w.err != nil && !r.reveals(w.real), !r.reaches(dir):
		return "", nil // git cannot follow it inside, and an error would disclose what is there
	case w.err != nil:
		return "", w.err
	case w.foreign:
		return "", nil
	}
	r.protectLinks(w)
	switch {
	case !r.writable(filepath.Dir(w.real)), r.has(w.real), r.granted(w.real):
		return w.real, nil
	case w.missing:
		r.missing[w.real] = true
	}
	r.add(w.real, protocol.AccessRead)
	return w.real, nil
}

// granted reports whether a directory is in a .git that an entry makes writable. The entry
// for a repository also grants what git keeps there for worktrees and submodules.
func (r *resolver) granted(dir string) bool {
	rule := r.nearest(dir)
	return rule.access == protocol.AccessWrite && slices.Contains(strings.Split(rule.path, "/"), ".git")
}

// protectWorktrees protects the .git files of the worktrees of a repository.
func (r *resolver) protectWorktrees(common string) {
	for _, dir := range r.subdirectories(filepath.Join(common, "worktrees")) {
		if name := r.firstLine(filepath.Join(dir, "gitdir")); name != "" {
			r.protectNested(from(dir, name))
		}
		r.protectModules(filepath.Join(dir, "modules"), 0)
	}
}

// protectModules protects the .git files of the submodules whose repositories are in a
// directory. Their names may contain slashes.
func (r *resolver) protectModules(dir string, deep int) {
	if deep > maxModuleDepth {
		return
	}
	for _, module := range r.subdirectories(dir) {
		if !holdsRepository(module) {
			r.protectModules(module, deep+1)
			continue
		}
		if name := worktreeOf(r.readText(filepath.Join(module, "config"), maxGitConfig)); name != "" {
			r.protectNested(from(module, name) + "/.git")
		}
		r.protectWorktrees(module)
		r.protectModules(filepath.Join(module, "modules"), deep+1)
	}
}

// subdirectories returns the directories in a directory, within the number that may still
// be examined.
func (r *resolver) subdirectories(dir string) (list []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		r.recordUnread(err)
		return nil
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		if r.nested++; r.nested > maxNested {
			return list
		}
		list = append(list, filepath.Join(dir, entry.Name()))
	}
	return list
}

// protectNested protects a .git file in a root if it exists at the recorded path. It does not
// create missing files: a confined command could otherwise make every command fail.
func (r *resolver) protectNested(path string) {
	w := r.walk(path)
	if w.err != nil || w.missing || w.crossed != "" || r.has(w.real) || r.access(w.real) != protocol.AccessWrite {
		return
	}
	if info, err := os.Lstat(w.real); err == nil && info.Mode().IsRegular() && !isForeign(w.real, info) {
		r.add(w.real, protocol.AccessRead)
	}
}

// from resolves a name relative to dir, where ".." may follow links.
func from(dir, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return dir + "/" + name
}

// worktreeOf returns the value of core.worktree in a configuration, or "".
func worktreeOf(config string) (worktree string) {
	section := ""
	for line := range strings.Lines(config) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = strings.ToLower(line)
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		if section != "[core]" || !strings.EqualFold(strings.TrimSpace(key), "worktree") {
			continue
		}
		worktree = strings.TrimSpace(value)
		if text, err := strconv.Unquote(worktree); err == nil {
			worktree = text
		}
	}
	return worktree
}

func (r *resolver) firstLine(path string) string {
	line, _, _ := strings.Cut(r.readText(path, maxPointer), "\n")
	return strings.TrimSpace(line)
}

// readText reads a small file. It returns "" if the file is missing or belongs to another
// user. It never blocks.
func (r *resolver) readText(path string, limit int64) string {
	file, err := openPlain(path, limit, func(info fs.FileInfo) error {
		if isForeign(path, info) {
			return errors.New("it belongs to another user")
		}
		return nil
	})
	if err != nil {
		r.recordUnread(err)
		return ""
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, limit))
	if err != nil {
		r.recordUnread(err)
		return ""
	}
	return string(text)
}

// recordUnread records an error after which files may still need protection: another program
// has a lease on the file, or this one has no descriptors left.
func (r *resolver) recordUnread(err error) {
	for _, reason := range []error{unix.EWOULDBLOCK, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO} {
		if errors.Is(err, reason) {
			r.unread = fmt.Errorf("find out what to protect of git: %w; try again", err)
		}
	}
}

// openPlain opens a regular file of at most limit bytes that check accepts. It never
// blocks.
func openPlain(path string, limit int64, check func(fs.FileInfo) error) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("it is not a regular file")
	case info.Size() > limit:
		err = fmt.Errorf("it has %d bytes, the limit is %d", info.Size(), limit)
	default:
		err = check(info)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}
