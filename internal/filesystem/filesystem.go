// Package filesystem carries out file operations for a remote client. A request may name
// a FIFO, a device, a directory of a million entries, or a file that another program is
// replacing. The operation must still end soon, use bounded memory, and return a useful
// error.
//
// The package knows nothing of the protocol. Paths are absolute host paths, and their
// bytes are used unchanged. Results are plain values. [Classify] turns any error of this
// package into the kind and the text for a peer.
//
// Start with [GetMetadata], [Open], [ReadDirectory] and [WriteFile]. [Handles] holds the
// open files of one connection, [Walk] lists trees, and [MissingWatch] and [Watcher]
// report changes.
//
// Every function may be called concurrently. A context bounds the operation as far as the
// system allows: between blocks, entries and files, but not inside a single system call,
// such as one on a dead network mount.
package filesystem

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
)

// Links selects what an operation does about symbolic links in its path.
type Links int

const (
	// Follow follows links, as programs usually do.
	Follow Links = iota
	// NoFollow refuses a path with a link in it, including the last component.
	NoFollow
)

// ModeBits returns the permissions of a mode, and the three bits above them, in Unix
// numbers.
func ModeBits(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	for _, b := range []struct {
		mode fs.FileMode
		bit  uint32
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if mode&b.mode != 0 {
			bits |= b.bit
		}
	}
	return bits
}

// Canonicalize resolves every link in path, which must exist.
func Canonicalize(ctx context.Context, path string) (string, error) {
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err := checkPath(path); err != nil {
		return "", err
	}
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		if _, ok := errors.AsType[syscall.Errno](err); !ok {
			err = syscall.ELOOP // the only error of EvalSymlinks that is a text
		}
		return "", pathError("canonicalize", path, err)
	}
	return resolved, nil
}

// Join returns path relative to the directory base, lexically. It returns an absolute
// path unchanged.
func Join(base, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(base, path)
}

// Parent returns the directory of path, lexically; the root has none.
func Parent(path string) (string, bool) {
	path = filepath.Clean(path)
	parent := filepath.Dir(path)
	return parent, parent != path
}

// checkPath refuses a path that the system would resolve relative to the server's own
// directory, or cut short.
func checkPath(path string) error {
	if strings.IndexByte(path, 0) >= 0 {
		return &Refusal{"file name contained an unexpected NUL byte"}
	}
	if !filepath.IsAbs(path) {
		return &Refusal{"path is not absolute: " + path}
	}
	return nil
}

// Texts of refusals that several operations use.
const (
	textLinkInPath = "path contains a symbolic link"
	textNotRegular = "path is not a regular file"
)

func refuseNotFile(path string, links Links) error {
	if links == NoFollow {
		return &Refusal{textNotRegular}
	}
	return &Refusal{"path `" + path + "` is not a file"}
}

func isLink(mode fs.FileMode) bool { return mode&fs.ModeSymlink != 0 }

func join(dir, name string) string {
	if dir == string(filepath.Separator) {
		return dir + name
	}
	return dir + string(filepath.Separator) + name
}
