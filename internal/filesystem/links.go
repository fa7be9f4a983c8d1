package filesystem

import (
	"io/fs"
	"path/filepath"
	"strings"
)

// Links says what an operation does about symbolic links in its path.
type Links int

const (
	// Follow follows links, as programs usually do.
	Follow Links = iota
	// NoFollow refuses a path with a link in it, also as the last component.
	NoFollow
)

// checkPath refuses a path that the system would resolve relative to the server's own
// directory, or cut short.
func checkPath(path string) error {
	if strings.IndexByte(path, 0) >= 0 {
		return &Refusal{"file name contained an unexpected NUL byte"}
	}
	if !filepath.IsAbs(path) {
		return &Refusal{"path is not absolute: " + path}
	}
	return nil
}

// Texts of refusals that several operations use.
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
