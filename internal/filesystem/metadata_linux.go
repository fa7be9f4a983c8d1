package filesystem

import (
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

func getMetadata(path string, links Links, itself bool) (Metadata, error) {
	p, err := locate(path, links)
	if err != nil {
		return Metadata{}, err
	}
	defer p.close()
	st, err := p.statx(unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return Metadata{}, pathError("stat", path, err)
	}
	symlink := st.Mode&unix.S_IFMT == unix.S_IFLNK
	target := ""
	switch {
	case symlink && itself:
		if target, err = p.readLink(); err != nil {
			return Metadata{}, pathError("readlink", path, err)
		}
	case symlink:
		if links == NoFollow {
			return Metadata{}, &Refusal{textLinkInPath}
		}
		if st, err = p.statx(0); err != nil {
			return Metadata{}, pathError("stat", path, err)
		}
	}
	m := Metadata{
		IsDirectory: st.Mode&unix.S_IFMT == unix.S_IFDIR,
		IsFile:      st.Mode&unix.S_IFMT == unix.S_IFREG,
		IsSymlink:   symlink,
		Size:        int64(st.Size),
		Modified:    time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)),
		Mode:        modeOf(uint32(st.Mode)),
		UID:         &st.Uid,
		GID:         &st.Gid,
		Target:      target,
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		m.Created = time.Unix(st.Btime.Sec, int64(st.Btime.Nsec))
	}
	return m, nil
}

// statx is stat with the time of creation. Where a kernel or a sandbox does not have it,
// it falls back to stat.
func (p place) statx(flags int) (unix.Statx_t, error) {
	var stx unix.Statx_t
	_, err := retry(func() (int, error) {
		return 0, sys.Statx(p.dir, p.name, flags|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &stx)
	})
	if err != unix.ENOSYS {
		return stx, err
	}
	st, err := p.stat(flags)
	stx.Mode, stx.Size, stx.Uid, stx.Gid = uint16(st.Mode), uint64(st.Size), st.Uid, st.Gid
	stx.Mtime.Sec, stx.Mtime.Nsec = int64(st.Mtim.Sec), uint32(st.Mtim.Nsec)
	return stx, err
}
