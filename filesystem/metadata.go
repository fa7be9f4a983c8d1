package filesystem

import (
	"context"
	"time"
)

// Metadata describes a file, or what a link leads to.
type Metadata struct {
	IsDirectory bool
	IsFile      bool // a regular file; FIFOs, sockets and devices are neither
	IsSymlink   bool // the last component of the path itself is a link
	Size        int64
	Created     time.Time // zero when the file system does not say
	Modified    time.Time
}

// GetMetadata describes what path leads to. A dangling link is not found. With
// NoFollow a link is a [Refusal].
func GetMetadata(ctx context.Context, path string, links Links) (Metadata, error) {
	if err := ctx.Err(); err != nil {
		return Metadata{}, context.Cause(ctx)
	}
	return getMetadata(path, links)
}

// Milliseconds returns a time of Metadata as the wire has it: Unix
// milliseconds, 0 for unknown and for anything before 1970.
func Milliseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(0, t.UnixMilli())
}
