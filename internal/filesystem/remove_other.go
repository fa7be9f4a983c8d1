//go:build !linux

package filesystem

import (
	"context"
	"os"
)

func remove(_ context.Context, path string, options RemoveOptions) error {
	if err := guard(path, options.Links); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return pathError("remove", path, err)
	}
	if options.Links == NoFollow && isLink(info.Mode()) {
		return &Refusal{textLinkInPath}
	}
	if options.Recursive && info.IsDir() {
		return pathError("remove", path, os.RemoveAll(path))
	}
	return pathError("remove", path, os.Remove(path))
}
