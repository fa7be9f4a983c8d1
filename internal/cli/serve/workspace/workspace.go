// Package workspace makes directories exist on this machine under the paths that clients name. A
// client such as Codex names the directory in which it was started on its own machine. The
// package creates that directory, or shows another directory at its path: by a bind mount that
// only this program and its processes see, or by a symbolic link.
package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Workspace is the path of a directory for clients, and its source on this machine. Both paths
// are absolute and clean. They are equal if the directory has its own path.
type Workspace struct{ Path, Source string }

// Parse parses PATH or PATH=SOURCE. SOURCE may begin with ~/, the user's home directory.
// Otherwise it is relative to the working directory.
func Parse(text string) (Workspace, error) {
	path, source, mapped := strings.Cut(text, "=")
	if !filepath.IsAbs(path) {
		return Workspace{}, errors.New("expected an absolute path")
	}
	w := Workspace{Path: filepath.Clean(path)}
	w.Source = w.Path
	if !mapped {
		return w, nil
	}
	if source == "" {
		return Workspace{}, errors.New("expected a path after the =")
	}
	if source == "~" || strings.HasPrefix(source, "~/") {
		home, err := os.UserHomeDir()
		if err != nil {
			return Workspace{}, err
		}
		source = filepath.Join(home, source[1:])
	}
	var err error
	if w.Source, err = filepath.Abs(source); err != nil {
		return Workspace{}, err
	}
	if w.Path != w.Source && (within(w.Path, w.Source) || within(w.Source, w.Path)) {
		return Workspace{}, errors.New("one of the directories contains the other")
	}
	return w, nil
}

// within reports whether a path is dir or below it.
func within(path, dir string) bool {
	rest, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rest)
}

// Prepare creates the directories of the workspaces, and returns the workspaces that still have
// to be shown.
func Prepare(list []Workspace) (hidden []Workspace, err error) {
	for _, w := range list {
		if _, err := makeAll(w.Source); err != nil {
			return nil, fmt.Errorf("make the workspace %s: %w", w.Source, err)
		}
		shown, err := w.leads()
		if err != nil {
			return nil, fmt.Errorf("look at the workspace %s: %w", w.Path, err)
		}
		if !shown {
			hidden = append(hidden, w)
		}
	}
	return hidden, nil
}

// leads reports whether the path of the workspace leads to its directory.
func (w Workspace) leads() (bool, error) {
	real, rest, err := resolve(w.Path)
	if err != nil || len(rest) > 0 {
		return false, err
	}
	at, err := os.Stat(real)
	if err != nil {
		return false, err
	}
	source, err := os.Stat(w.Source)
	return err == nil && os.SameFile(at, source), err
}

// real returns the workspace with paths without links.
func (w Workspace) real() (Workspace, error) {
	for _, path := range []*string{&w.Path, &w.Source} {
		real, rest, err := resolve(*path)
		if err != nil {
			return w, err
		}
		*path = filepath.Join(append([]string{real}, rest...)...)
	}
	return w, nil
}

// makeAll creates a directory and its missing parents. It returns the path without links.
func makeAll(path string) (string, error) {
	real, rest, err := resolve(path)
	for err == nil && len(rest) > 0 {
		real = filepath.Join(real, rest[0])
		if err = os.Mkdir(real, 0o777); errors.Is(err, fs.ErrExist) {
			err = nil // just created; the caller does not follow links next
		}
		rest = rest[1:]
	}
	return real, err
}

// maxLinks bounds the links in a path.
const maxLinks = 40

// resolve follows the links in an absolute path as far as it exists. real has no links, and rest
// are the missing names below it. Links owned by users other than root and the user of this
// program are errors, because they may be planted.
func resolve(path string) (real string, rest []string, err error) {
	real, rest = split(path)
	for links := 0; len(rest) > 0; {
		next := filepath.Join(real, rest[0]) // rest has no "..", because the paths are clean
		info, err := os.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return real, rest, nil
		case err != nil:
			return "", nil, err
		case info.IsDir():
			real, rest = next, rest[1:]
			continue
		case info.Mode().Type() != fs.ModeSymlink:
			return "", nil, fmt.Errorf("%s is not a directory", next)
		}
		if links++; links > maxLinks {
			return "", nil, fmt.Errorf("%s: too many links", path)
		}
		if uid, ok := strangerOf(info); ok {
			return "", nil, fmt.Errorf("%s is a link of the user %d, who could redirect it", next, uid)
		}
		text, err := os.Readlink(next)
		if err != nil {
			return "", nil, err
		}
		if !filepath.IsAbs(text) {
			text = filepath.Join(real, text)
		}
		real, rest = split(filepath.Join(append([]string{text}, rest[1:]...)...))
	}
	return real, nil, nil
}

// split returns the root of an absolute path, and the names below it.
func split(path string) (root string, names []string) {
	path = filepath.Clean(path)
	root = filepath.VolumeName(path) + string(filepath.Separator)
	if path = strings.TrimPrefix(path, root); path == "" {
		return root, nil
	}
	return root, strings.Split(path, string(filepath.Separator))
}

// Link makes the path of each workspace a symbolic link to its source. It replaces nothing.
func Link(list []Workspace) error {
	for _, w := range list {
		dir, err := makeAll(filepath.Dir(w.Path))
		if err == nil {
			err = os.Symlink(w.Source, filepath.Join(dir, filepath.Base(w.Path)))
		}
		if err != nil {
			return fmt.Errorf("make %s a link to %s: %w", w.Path, w.Source, err)
		}
	}
	return nil
}

// Hides reports whether a mount at the path of the workspace hides files.
func (w Workspace) Hides() bool {
	dir, err := os.Open(w.Path)
	if err != nil {
		return false
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(1)
	return len(names) > 0
}
