package filesystem

import (
	"io/fs"
	"path/filepath"
	"strings"
)

// Links says what an operation does about symbolic links on its way.
type Links int

const (
	// Follow goes where links lead, as programs usually do.
	Follow Links = iota
	// NoFollow refuses a path with a link in it, last component included.
	NoFollow
)

// checkPath refuses what would be looked up relative to the server's own
// directory, or cut short by the system.
func checkPath(path string) error {
	if strings.IndexByte(path, 0) >= 0 {
		return &Refusal{"file name contained an unexpected NUL byte"}
	}
	if !filepath.IsAbs(path) {
		return &Refusal{"path is not absolute: " + path}
	}
	return nil
}

// The texts of refusals that are shared by operations.
const (
	textLinkInPath = "path contains a symbolic link"
	textNotRegular = "path is not a regular file"
)

func refuseNotFile(path string, links Links) error {
	if links == NoFollow {
		return &Refusal{textNotRegular}
	}
	return &Refusal{"path `" + path + "` is not a file"}
}

func isLink(mode fs.FileMode) bool { return mode&fs.ModeSymlink != 0 }
