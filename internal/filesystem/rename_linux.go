package filesystem

import (
	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

func rename(from, to string, options RenameOptions) error {
	src, err := locate(from, options.Links)
	if err != nil {
		return err
	}
	defer src.close()
	dst, err := locate(to, options.Links)
	if err != nil {
		return err
	}
	defer dst.close()
	if options.Links == NoFollow {
		for _, p := range []place{src, dst} {
			if st, err := p.stat(unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
				return &Refusal{textLinkInPath}
			}
		}
	}
	var flags uint
	if options.NoReplace {
		flags = unix.RENAME_NOREPLACE
	}
	err = sys.Renameat2(src.dir, src.name, dst.dir, dst.name, flags)
	return pathError("rename", from, err)
}
