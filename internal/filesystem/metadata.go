package filesystem

import (
	"context"
	"io/fs"
	"time"
)

// Metadata describes a file or the target of a link.
type Metadata struct {
	IsDirectory bool
	IsFile      bool // a regular file; FIFOs, sockets and devices are neither
	IsSymlink   bool // the last component of the path itself is a link
	Size        int64
	Created     time.Time // zero when the file system does not say
	Modified    time.Time

	Mode     fs.FileMode // with the type
	UID, GID *uint32     // nil on Windows
	Target   string      // the text of a link that is described itself
}

// GetMetadata describes the file to which path leads. A dangling link is not found. With
// NoFollow a link is a [Refusal].
func GetMetadata(ctx context.Context, path string, links Links) (Metadata, error) {
	if err := ctx.Err(); err != nil {
		return Metadata{}, context.Cause(ctx)
	}
	return getMetadata(path, links, false)
}

// GetLinkMetadata describes the file at path, which may be a link itself. With NoFollow,
// path may not lead over another link.
func GetLinkMetadata(ctx context.Context, path string, links Links) (Metadata, error) {
	if err := ctx.Err(); err != nil {
		return Metadata{}, context.Cause(ctx)
	}
	return getMetadata(path, links, true)
}

// Milliseconds returns a time of Metadata as it is on the wire: Unix milliseconds, 0 for
// an unknown time and for any time before 1970.
func Milliseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(0, t.UnixMilli())
}

// Changes are what SetMetadata changes. A nil field changes nothing.
type Changes struct {
	Links    Links
	Mode     *fs.FileMode // permission bits, whatever the umask
	Size     *int64       // of a regular file: cuts it, or extends it with zeros
	Modified *time.Time
}

// SetMetadata changes the size, the mode and the modification time of a file, in this
// order. If one fails, the earlier ones have happened. With Follow it changes the target
// of a link. With NoFollow a link is a [Refusal].
func SetMetadata(ctx context.Context, path string, changes Changes) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return setMetadata(ctx, path, changes)
}
