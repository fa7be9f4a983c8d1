package server

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"execserver/internal/filesystem"
	"execserver/internal/rpc"
	"execserver/internal/sys"
	"execserver/protocol"
)

// Bounds of listings, so that clients accept the answer: below protocol.MaxAnswerBytes
// and protocol.MaxValues.
const (
	maxListingBytes  = 48 << 20                // of an encoded answer
	maxListingValues = protocol.MaxValues - 16 // JSON values in it
	maxWalkPathBytes = 16 << 20                // before they are escaped, which at most triples them
)

// getMetadata serves fs/getMetadata.
func (h *fileHandler) getMetadata(r *rpc.Request, p protocol.FileParams, paths []string) {
	h.answer(r, func() (any, error) {
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
func (h *fileHandler) readDirectory(r *rpc.Request, p protocol.FileParams, paths []string) {
	after, err := pageStart(p)
	if err != nil {
		r.Fail(err)
		return
	}
	h.answerLarge(r, func(fits func(int) bool) (any, error) {
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
			if bytes > maxListingBytes || values > h.server.listingValues {
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

// readLink serves fs/readLink.
func (h *fileHandler) readLink(r *rpc.Request, p protocol.FileParams, paths []string) {
	h.answer(r, func() (any, error) {
		text, err := filesystem.ReadLink(r.Context(), paths[0], links(p.FollowSymlinks))
		if err != nil {
			return nil, err
		}
		return protocol.ReadLinkResult{LinkTarget: protocol.NewLinkTarget(text)}, nil
	})
}

// walk serves fs/walk.
func (h *fileHandler) walk(r *rpc.Request, p protocol.WalkParams, paths []string) {
	h.answerLarge(r, func(fits func(int) bool) (any, error) {
		found, err := filesystem.Walk(r.Context(), paths[0], filesystem.WalkOptions{
			MaxDepth:                clampInt(p.Options.MaxDepth),
			MaxDirectories:          clampInt(p.Options.MaxDirectories),
			MaxEntries:              clampInt(p.Options.MaxEntries),
			MaxPathBytes:            maxWalkPathBytes,
			Fits:                    func(count, pathBytes int) bool { return fits(64 + 64*count + 2*pathBytes) },
			FollowDirectorySymlinks: p.Options.FollowDirectorySymlinks,
			PruneHiddenDirectories:  p.Options.PruneHiddenDirectories,
		})
		if err != nil {
			return nil, err
		}
		result := protocol.WalkResult{
			Entries:   make([]protocol.WalkEntry, len(found.Entries)),
			Errors:    make([]protocol.WalkError, len(found.Errors)),
			Truncated: found.Truncated,
		}
		size := 1 << 10
		for i, e := range found.Entries {
			result.Entries[i] = protocol.WalkEntry{Path: p.Path.WithOSPath(e.Path), Kind: protocol.WalkFile}
			if e.IsDirectory {
				result.Entries[i].Kind = protocol.WalkDirectory
			}
			size += len(result.Entries[i].Path.String()) + len(`{"path":"","kind":"directory"},`)
		}
		for i, e := range found.Errors {
			result.Errors[i] = protocol.WalkError{Path: p.Path.WithOSPath(e.Path), Message: sys.ErrorText(e.Err)}
		}
		// Memory that grows would leave as much garbage again.
		return rpc.Encoded(result.AppendJSON(r.Begin(size))), nil
	})
}

// clampInt converts a number of the wire, however large.
func clampInt(n uint64) int { return int(min(n, 1<<31-1)) }

// canonicalize serves fs/canonicalize.
func (h *fileHandler) canonicalize(r *rpc.Request, p protocol.FileParams, paths []string) {
	h.answer(r, func() (any, error) {
		real, err := filesystem.Canonicalize(r.Context(), paths[0])
		if err != nil {
			return nil, fmt.Errorf("canonicalize %s: %w", paths[0], err)
		}
		return protocol.PathResult{Path: p.Path.WithOSPath(real)}, nil
	})
}

// join serves fs/join. It accesses no file.
func (h *fileHandler) join(r *rpc.Request, p protocol.JoinParams, paths []string) {
	if strings.IndexByte(p.Path, 0) >= 0 {
		r.Fail(protocol.Errorf(protocol.CodeInvalidParams, "path must not contain a NUL"))
		return
	}
	if absolute, err := protocol.ParsePath(p.Path); err == nil && absolute.IsURI() == p.BasePath.IsURI() {
		r.Reply(protocol.PathResult{Path: absolute})
		return
	}
	r.Reply(protocol.PathResult{Path: p.BasePath.WithOSPath(filesystem.Join(paths[0], p.Path))})
}

// parent serves fs/parent. It accesses no file.
func (h *fileHandler) parent(r *rpc.Request, p protocol.FileParams, paths []string) {
	var result protocol.PathResult
	if parent, ok := filesystem.Parent(paths[0]); ok {
		result.Path = p.Path.WithOSPath(parent)
	}
	r.Reply(result)
}

// readFile serves fs/readFile.
func (h *fileHandler) readFile(r *rpc.Request, p protocol.FileParams, paths []string) {
	h.readOpened(r, func(ctx context.Context) (*filesystem.File, error) {
		return filesystem.Open(ctx, paths[0], filesystem.ReadOptions{Links: links(p.FollowSymlinks)})
	})
}

// readOpened answers with the content of the file that open opens.
func (h *fileHandler) readOpened(r *rpc.Request, open func(context.Context) (*filesystem.File, error)) {
	h.answer(r, func() (any, error) {
		f, err := open(r.Context())
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return h.readWhole(r, f)
	})
}

// A file is read in pieces, which are encoded one by one, so its content is in memory
// once. The size of a piece is a multiple of three bytes, which base64 encodes without
// padding, and of a page, which some files in /proc require. Files may grow while they
// are read, and files in /proc have size 0, so the reservation exceeds the size a little.
const (
	firstPieceBytes = 3 * 4096
	pieceBytes      = 16 * firstPieceBytes
	slackBytes      = 4 << 10 // and a sixteenth of the size
)

// readWhole builds the answer to fs/readFile.
func (h *fileHandler) readWhole(r *rpc.Request, f *filesystem.File) (any, error) {
	capacity := int(f.Size()) + int(f.Size())/16 + slackBytes
	answerLen := func(content int) int {
		if content <= firstPieceBytes {
			return protocol.Base64Len(content) + firstPieceBytes + 64
		}
		return protocol.Base64Len(content) + pieceBytes + 64
	}
	return h.reserveInSteps(r, answerLen(capacity), func(fits func(int) bool) (any, error) {
		if err := f.Rewind(); err != nil {
			return nil, err
		}
		answer, binary := r.BeginBinary(capacity)
		if !binary {
			answer = append(r.Begin(protocol.Base64Len(capacity)), `{"dataBase64":"`...)
		}
		piece := make([]byte, firstPieceBytes)
		if capacity > firstPieceBytes {
			piece = make([]byte, pieceBytes)
		}
		for read := 0; ; {
			if r.Context().Err() != nil {
				return nil, context.Cause(r.Context())
			}
			n, err := io.ReadFull(f, piece)
			read += n
			if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
				return nil, err
			}
			if !fits(answerLen(read)) {
				capacity = 2 * read // for the next call
				return nil, nil
			}
			if more := protocol.Base64Len(n) + 2; cap(answer)-len(answer) < more {
				answer = slices.Grow(answer, max(len(answer), more)) // within the reservation that fits has checked
			}
			if binary {
				answer = append(answer, piece[:n]...)
			} else {
				answer = protocol.AppendBase64(answer, piece[:n])
			}
			switch {
			case err == nil:
			case binary: // the end of the file
				return answer, nil
			default:
				return append(answer, `"}`...), nil
			}
			if len(piece) < pieceBytes {
				piece = make([]byte, pieceBytes)
			}
		}
	})
}

func linkTarget(m filesystem.Metadata) protocol.LinkTarget {
	if m.Mode&fs.ModeSymlink == 0 {
		return protocol.LinkTarget{}
	}
	return protocol.NewLinkTarget(m.Target)
}

// nanoseconds returns the part of a time below a millisecond.
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
