//go:build !linux

package filesystem

import "os"

func getMetadata(path string, links Links, itself bool) (Metadata, error) {
	if err := guard(path, links); err != nil {
		return Metadata{}, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return Metadata{}, pathError("stat", path, err)
	}
	symlink := isLink(info.Mode())
	target := ""
	switch {
	case symlink && itself:
		if target, err = os.Readlink(path); err != nil {
			return Metadata{}, pathError("readlink", path, err)
		}
	case symlink:
		if links == NoFollow {
			return Metadata{}, &Refusal{textLinkInPath}
		}
		if info, err = os.Stat(path); err != nil {
			return Metadata{}, pathError("stat", path, err)
		}
	}
	uid, gid := owner(info)
	return Metadata{
		IsDirectory: info.IsDir(),
		IsFile:      info.Mode().IsRegular(),
		IsSymlink:   symlink,
		Size:        info.Size(),
		Modified:    info.ModTime(),
		Mode:        info.Mode(),
		UID:         uid,
		GID:         gid,
		Target:      target,
	}, nil
}
