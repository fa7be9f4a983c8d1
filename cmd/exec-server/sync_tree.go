package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"execserver/client"
	"execserver/protocol"
)

// fileState is what push and pull know about a file or a link. Directories have none.
type fileState struct {
	Size     int64       `json:"size"`
	Modified time.Time   `json:"modified"`
	Mode     fs.FileMode `json:"mode"`
	Link     string      `json:"link,omitempty"` // the text of a link
	Hash     string      `json:"hash,omitempty"` // SHA-256 of the content, if it is known
}

// looks reports whether two states are the same as far as a listing shows.
func (s fileState) looks(other fileState) bool {
	return s.alike(other) && (s.Link != "" || s.Modified.Truncate(time.Microsecond).Equal(other.Modified.Truncate(time.Microsecond)))
}

// alike reports whether two states are the same but perhaps for their times, so that their
// contents may be the same.
func (s fileState) alike(other fileState) bool {
	if s.Link != "" || other.Link != "" {
		return s.Link == other.Link
	}
	return s.Size == other.Size && s.Mode == other.Mode
}

// side is a directory that is pushed or pulled, on one of the machines. Names are relative,
// with slashes.
type side struct {
	name  string // for a person
	list  func(dir string) ([]sideEntry, error)
	open  func(name string) (io.ReadCloser, error)
	modes bool                 // permissions count
	files map[string]fileState // after read
}

type sideEntry struct {
	name      string
	directory bool
	special   bool // neither a file, nor a link, nor a directory
	state     fileState
}

// localSide returns a directory of this machine.
func localSide(root *os.Root) *side {
	return &side{
		name: "here",
		open: func(name string) (io.ReadCloser, error) { return root.Open(filepath.FromSlash(name)) },
		list: func(dir string) (list []sideEntry, err error) {
			d, err := root.Open(filepath.FromSlash(dir))
			if err != nil {
				return nil, err
			}
			defer d.Close()
			entries, err := d.ReadDir(-1)
			for _, e := range entries {
				info, err := e.Info()
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					return nil, err
				}
				entry := entryOf(e.Name(), info)
				if info.Mode().Type() == fs.ModeSymlink {
					if entry.state.Link, err = root.Readlink(filepath.Join(filepath.FromSlash(dir), e.Name())); err != nil {
						return nil, err
					}
				}
				list = append(list, entry)
			}
			return list, err
		},
	}
}

// farSide returns a directory of the other machine. The client refuses names that are none,
// and os.Root and FS.CopyOut write nothing outside of the directory here.
func farSide(files *client.FS) *side {
	return &side{
		name: "there",
		open: func(name string) (io.ReadCloser, error) { return files.Open(name) },
		list: func(dir string) (list []sideEntry, err error) {
			entries, err := files.ReadDir(dir)
			for _, e := range entries {
				info, err := e.Info()
				if err != nil {
					return nil, err
				}
				entry := entryOf(e.Name(), info)
				if meta, ok := info.Sys().(protocol.FileMetadata); ok && meta.FileDetails != nil && info.Mode().Type() == fs.ModeSymlink {
					entry.state.Link = meta.FileDetails.Text()
				}
				list = append(list, entry)
			}
			return list, err
		},
	}
}

func entryOf(name string, info fs.FileInfo) sideEntry {
	kind := info.Mode().Type()
	e := sideEntry{name: name, directory: info.IsDir(), special: kind != 0 && kind != fs.ModeDir && kind != fs.ModeSymlink}
	if kind == 0 {
		e.state = fileState{Size: info.Size(), Modified: info.ModTime(), Mode: info.Mode().Perm()}
	}
	return e
}

// sideReaders is how many directories, or files, are read at a time.
const sideReaders = 16

// read lists everything that the filter keeps.
func (s *side) read(ctx context.Context, filter *syncFilter) error {
	s.files = make(map[string]fileState)
	level := []string{"."}
	for depth := 0; len(level) > 0; depth++ {
		if depth > maxSyncDepth {
			return fmt.Errorf("%s is deeper than %d directories", level[0], maxSyncDepth)
		}
		lists := make([][]sideEntry, len(level))
		err := parallel(ctx, len(level), func(i int) (err error) {
			lists[i], err = s.list(level[i])
			if errors.Is(err, fs.ErrNotExist) && level[i] != "." {
				err = nil // removed meanwhile
			}
			if err != nil {
				err = pathError("list", level[i]+" "+s.name, err)
			}
			return err
		})
		if err != nil {
			return err
		}
		var found []string // directories end in a slash
		states := make(map[string]fileState)
		for i, dir := range level {
			for _, e := range lists[i] {
				name := path.Join(dir, e.name)
				switch {
				case e.special, isPart(e.name):
				case e.directory:
					found = append(found, name+"/")
				default:
					found = append(found, name)
					if !s.modes {
						e.state.Mode = 0
					}
					states[name] = e.state
				}
			}
		}
		if found, err = filter.keep(ctx, found); err != nil {
			return err
		}
		level = level[:0]
		for _, name := range found {
			if dir, ok := strings.CutSuffix(name, "/"); ok {
				level = append(level, dir)
			} else {
				s.files[name] = states[name]
			}
		}
		if len(s.files) > maxSyncFiles {
			return fmt.Errorf("there are more than %d files %s; choose a smaller directory", maxSyncFiles, s.name)
		}
	}
	return nil
}

// Bounds of what is pushed and pulled, against directories without an end.
const (
	maxSyncDepth = 256
	maxSyncFiles = 2 << 20
)

// isPart reports whether a file is one that a copy has not completed.
func isPart(name string) bool {
	return strings.HasPrefix(name, ".exec-server-") && strings.HasSuffix(name, ".part")
}

// hash computes the hashes of files that lack them. A file that cannot be read gets none.
func (s *side) hash(ctx context.Context, names []string) error {
	sums := make([]string, len(names))
	err := parallel(ctx, len(names), func(i int) error {
		if state := s.files[names[i]]; state.Hash != "" || state.Link != "" {
			sums[i] = state.Hash
			return nil
		}
		file, err := s.open(names[i])
		if err != nil {
			return nil // it then counts as changed
		}
		defer file.Close()
		sum := sha256.New()
		if _, err := io.Copy(sum, file); err == nil {
			sums[i] = hex.EncodeToString(sum.Sum(nil))
		}
		return nil
	})
	for i, name := range names {
		state := s.files[name]
		state.Hash = sums[i]
		s.files[name] = state
	}
	return err
}

// parallel calls f for 0 to n-1, and returns the first error.
func parallel(ctx context.Context, n int, f func(i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	next := make(chan int)
	for range min(n, sideReaders) {
		wg.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}
