package client

import (
	"errors"
	"io"
	"io/fs"
	"time"

	"execserver/protocol"
)

// fileInfo implements fs.FileInfo.
type fileInfo struct {
	name string
	meta protocol.FileMetadata
}

func (i *fileInfo) Name() string { return i.name }
func (i *fileInfo) Size() int64  { return max(i.meta.Size, 0) }
func (i *fileInfo) IsDir() bool  { return i.meta.IsDirectory }
func (i *fileInfo) Sys() any     { return i.meta }

func (i *fileInfo) Mode() fs.FileMode {
	if d := i.meta.FileDetails; d != nil {
		return detailedMode(d.Kind, d.Mode)
	}
	return mode(i.meta.IsDirectory, i.meta.IsFile)
}

func (i *fileInfo) ModTime() time.Time {
	at := time.UnixMilli(i.meta.ModifiedAtMs)
	if d := i.meta.FileDetails; d != nil {
		at = at.Add(time.Duration(d.ModifiedNs))
	}
	return at
}

// mode returns the mode of a file whose server reports no details.
func mode(directory, file bool) fs.FileMode {
	switch {
	case directory:
		return fs.ModeDir | 0o755
	case file:
		return 0o644
	}
	return fs.ModeIrregular | 0o644
}

// detailedMode converts a kind and the Unix bits of a mode.
func detailedMode(kind protocol.FileKind, bits protocol.FileMode) fs.FileMode {
	m := fs.FileMode(bits).Perm()
	for bit, special := range specialBits {
		if bits&bit != 0 {
			m |= special
		}
	}
	switch kind {
	case protocol.KindFile:
		return m
	case protocol.KindDirectory:
		return m | fs.ModeDir
	case protocol.KindSymlink:
		return m | fs.ModeSymlink
	case protocol.KindFIFO:
		return m | fs.ModeNamedPipe
	case protocol.KindSocket:
		return m | fs.ModeSocket
	case protocol.KindCharDevice:
		return m | fs.ModeDevice | fs.ModeCharDevice
	case protocol.KindBlockDevice:
		return m | fs.ModeDevice
	}
	return m | fs.ModeIrregular
}

// modeBits converts a mode to Unix bits.
func modeBits(mode fs.FileMode) *protocol.FileMode {
	bits := protocol.FileMode(mode.Perm())
	for bit, special := range specialBits {
		if mode&special != 0 {
			bits |= bit
		}
	}
	return &bits
}

var specialBits = map[protocol.FileMode]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky}

// dirEntry implements fs.DirEntry.
type dirEntry struct {
	fs   *FS
	path string // in the form of package fs
	wire protocol.DirectoryEntry
	link bool // a link to a directory, if the server reports no details
}

func (e *dirEntry) Name() string   { return e.wire.FileName }
func (e *dirEntry) IsDir() bool    { return e.Type().IsDir() }
func (e *dirEntry) String() string { return fs.FormatDirEntry(e) }

func (e *dirEntry) Type() fs.FileMode {
	if d := e.wire.EntryDetails; d != nil {
		return detailedMode(d.Kind, 0)
	}
	if e.link {
		return fs.ModeSymlink
	}
	return mode(e.wire.IsDirectory, e.wire.IsFile).Type()
}

func (e *dirEntry) Info() (fs.FileInfo, error) {
	if d := e.wire.EntryDetails; d != nil {
		return &fileInfo{e.Name(), protocol.FileMetadata{
			IsDirectory: d.Kind == protocol.KindDirectory, IsFile: d.Kind == protocol.KindFile, IsSymlink: d.Kind == protocol.KindSymlink,
			Size: d.Size, ModifiedAtMs: d.ModifiedAtMs,
			FileDetails: &protocol.FileDetails{Kind: d.Kind, Mode: d.Mode, ModifiedNs: d.ModifiedNs, LinkTarget: d.LinkTarget},
		}}, nil
	}
	info, err := e.fs.Stat(e.path)
	if err == nil && e.link {
		return linkInfo{info}, nil
	}
	return info, err
}

// linkInfo describes a link by its target directory.
type linkInfo struct{ fs.FileInfo }

func (linkInfo) Mode() fs.FileMode { return fs.ModeSymlink | 0o777 }
func (linkInfo) IsDir() bool       { return false }

// directory is an open directory.
type directory struct {
	fs      *FS
	name    string
	info    *fileInfo
	entries []fs.DirEntry // nil until the first ReadDir
	part    error         // why the entries are incomplete, or nil
	read    bool
	closed  bool
}

func (d *directory) Stat() (fs.FileInfo, error) { return d.info, nil }

func (d *directory) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.name, Err: errIsDirectory}
}

func (d *directory) Close() error {
	if d.closed {
		return &fs.PathError{Op: "close", Path: d.name, Err: fs.ErrClosed}
	}
	d.closed = true
	return nil
}

// ReadDir implements fs.ReadDirFile.
func (d *directory) ReadDir(n int) ([]fs.DirEntry, error) {
	if d.closed {
		return nil, &fs.PathError{Op: "readdir", Path: d.name, Err: fs.ErrClosed}
	}
	if !d.read {
		entries, err := d.fs.ReadDir(d.name)
		if err != nil && !errors.Is(err, ErrTruncated) {
			return nil, err
		}
		d.entries, d.part, d.read = entries, err, true
	}
	switch {
	case n <= 0:
		entries := d.entries
		d.entries = nil
		return entries, d.part
	case len(d.entries) == 0 && d.part != nil:
		return nil, d.part
	case len(d.entries) == 0:
		return nil, io.EOF
	}
	n = min(n, len(d.entries))
	entries := d.entries[:n:n]
	d.entries = d.entries[n:]
	return entries, nil
}
