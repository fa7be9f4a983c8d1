package server

import (
	"io/fs"
	"net/url"
	"path/filepath"
	"time"
	"unicode/utf8"

	"execserver/internal/filesystem"
	"execserver/internal/rpc"
	"execserver/protocol"
)

// getMetadata serves fs/getMetadata.
func (c *connection) getMetadata(r *rpc.Request, p protocol.FileParams, paths []string) {
	c.answer(r, func() (any, error) {
		get := filesystem.GetMetadata
		if p.Link {
			get = filesystem.GetLinkMetadata
		}
		m, err := get(r.Context(), paths[0], links(p.FollowSymlinks))
		if err != nil {
			return nil, err
		}
		result := protocol.FileMetadata{
			IsDirectory:  m.IsDirectory,
			IsFile:       m.IsFile,
			IsSymlink:    m.IsSymlink,
			Size:         m.Size,
			CreatedAtMs:  filesystem.Milliseconds(m.Created),
			ModifiedAtMs: filesystem.Milliseconds(m.Modified),
		}
		if p.Details {
			result.FileDetails = &protocol.FileDetails{
				Kind: fileKind(m.Mode), Mode: modeBits(m.Mode), UID: m.UID, GID: m.GID,
				ModifiedNs: nanoseconds(m.Modified), LinkTarget: linkTarget(m),
			}
		}
		return result, nil
	})
}

// readDirectory serves fs/readDirectory.
func (c *connection) readDirectory(r *rpc.Request, p protocol.FileParams, paths []string) {
	after, err := pageStart(p)
	if err != nil {
		r.Fail(err)
		return
	}
	c.answerLarge(r, func(fits func(int) bool) (any, error) {
		last := after
		result := protocol.ReadDirectoryResult{Entries: []protocol.DirectoryEntry{}}
		bytes, values := 64, 0
		visit := func(e filesystem.DirEntry) bool {
			entry := protocol.DirectoryEntry{FileName: e.Name, IsDirectory: e.IsDirectory, IsFile: e.IsFile}
			if !utf8.ValidString(e.Name) {
				full := protocol.URIPath(filepath.Join(paths[0], e.Name))
				entry.Path = &full
			}
			if m := e.Itself; m != nil {
				entry.EntryDetails = &protocol.EntryDetails{
					Kind: fileKind(m.Mode), Mode: modeBits(m.Mode), Size: m.Size,
					ModifiedAtMs: filesystem.Milliseconds(m.Modified), ModifiedNs: nanoseconds(m.Modified), LinkTarget: linkTarget(*m),
				}
			}
			bytes += entry.EncodedLen()
			values += entry.Values()
			if bytes > maxListingBytes || values > c.server.listingValues {
				result.Truncated = true
				return false
			}
			if !fits(bytes) {
				return false
			}
			result.Entries = append(result.Entries, entry)
			last = e.Name
			return true
		}
		if p.After == nil {
			err := filesystem.ReadDirectory(r.Context(), paths[0], p.Details, visit)
			return result, err
		}
		more, err := filesystem.ReadPage(r.Context(), paths[0], after, p.Details, visit)
		if more {
			next := url.PathEscape(last)
			result.Truncated, result.Next = true, &next
		}
		return result, err
	})
}

// pageStart returns the name after which a page begins.
func pageStart(p protocol.FileParams) (string, error) {
	if p.After == nil {
		return "", nil
	}
	name, err := url.PathUnescape(*p.After)
	if err != nil {
		return "", protocol.Errorf(protocol.CodeInvalidParams, "after must be the `next` of an answer: %s", err)
	}
	return name, nil
}

// setMetadata serves fs/setMetadata.
func (c *connection) setMetadata(r *rpc.Request, p protocol.SetMetadataParams, paths []string) {
	changes := filesystem.Changes{Links: links(p.FollowSymlinks), Mode: optionalMode(p.Mode), Modified: p.Time()}
	if p.Size != nil {
		size := int64(*p.Size)
		changes.Size = &size
	}
	c.change(r, paths, func() error { return filesystem.SetMetadata(r.Context(), paths[0], changes) })
}

// symlink serves fs/symlink.
func (c *connection) symlink(r *rpc.Request, p protocol.SymlinkParams, paths []string) {
	c.change(r, paths, func() error {
		return filesystem.Symlink(r.Context(), p.Text(), paths[0], links(p.FollowSymlinks))
	})
}

// readLink serves fs/readLink.
func (c *connection) readLink(r *rpc.Request, p protocol.FileParams, paths []string) {
	c.answer(r, func() (any, error) {
		text, err := filesystem.ReadLink(r.Context(), paths[0], links(p.FollowSymlinks))
		if err != nil {
			return nil, err
		}
		return protocol.ReadLinkResult{LinkTarget: protocol.NewLinkTarget(text)}, nil
	})
}

func linkTarget(m filesystem.Metadata) protocol.LinkTarget {
	if m.Mode&fs.ModeSymlink == 0 {
		return protocol.LinkTarget{}
	}
	return protocol.NewLinkTarget(m.Target)
}

// nanoseconds returns what Milliseconds leaves out of a time.
func nanoseconds(t time.Time) uint32 {
	if t.UnixMilli() < 0 {
		return 0
	}
	return uint32(t.Nanosecond() % int(time.Millisecond))
}

func modeBits(mode fs.FileMode) protocol.FileMode {
	return protocol.FileMode(filesystem.ModeBits(mode))
}

func fileKind(mode fs.FileMode) protocol.FileKind {
	switch {
	case mode.IsDir():
		return protocol.KindDirectory
	case mode&fs.ModeSymlink != 0:
		return protocol.KindSymlink
	case mode&fs.ModeNamedPipe != 0:
		return protocol.KindFIFO
	case mode&fs.ModeSocket != 0:
		return protocol.KindSocket
	case mode&fs.ModeCharDevice != 0:
		return protocol.KindCharDevice
	case mode&fs.ModeDevice != 0:
		return protocol.KindBlockDevice
	}
	return protocol.KindFile
}

// optionalMode converts the Unix bits of a file's mode, or nil.
func optionalMode(bits *protocol.FileMode) *fs.FileMode {
	if bits == nil {
		return nil
	}
	mode := fs.FileMode(*bits).Perm()
	for bit, special := range map[protocol.FileMode]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if *bits&bit != 0 {
			mode |= special
		}
	}
	return &mode
}
