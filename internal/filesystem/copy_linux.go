package filesystem

import (
	"context"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// copyData copies src from its start to dst, leaving holes as holes.
func copyData(ctx context.Context, dst, src *os.File) (int64, error) {
	fd := int(src.Fd())
	var st, to unix.Stat_t
	if err := sys.Fstat(fd, &st); err != nil {
		return 0, err
	}
	if err := sys.Fstat(int(dst.Fd()), &to); err != nil {
		return 0, err
	}
	if _, err := src.Seek(0, io.SeekStart); err != nil {
		return 0, cause(err)
	}
	// Only in an empty file does a hole of the source become a hole.
	if to.Mode&unix.S_IFMT != unix.S_IFREG || to.Size > 0 || st.Blocks*512 >= st.Size {
		return copyBlocks(ctx, dst, src, math.MaxInt64)
	}
	for offset := int64(0); ; {
		start, err := sys.Seek(fd, offset, unix.SEEK_DATA)
		if err == unix.ENXIO { // only a hole up to the end
			return st.Size, sys.Ftruncate(int(dst.Fd()), st.Size)
		}
		if err != nil && offset == 0 { // the file system does not report holes
			return copyBlocks(ctx, dst, src, math.MaxInt64)
		}
		if err != nil {
			return offset, err
		}
		end, err := sys.Seek(fd, start, unix.SEEK_HOLE)
		if err != nil {
			return offset, err
		}
		if _, err := src.Seek(start, io.SeekStart); err != nil {
			return offset, cause(err)
		}
		if _, err := dst.Seek(start, io.SeekStart); err != nil {
			return offset, cause(err)
		}
		n, err := copyBlocks(ctx, dst, src, end-start)
		if err != nil || n < end-start { // or src is shorter than reported
			return start + n, err
		}
		offset = end
	}
}
