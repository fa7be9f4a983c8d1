package server

import (
	"io/fs"

	"execserver/internal/filesystem"
	"execserver/internal/rpc"
	"execserver/protocol"
)

// writeFile serves fs/writeFile.
func (h *fileHandler) writeFile(r *rpc.Request, p protocol.WriteFileParams, paths []string) {
	options := filesystem.WriteOptions{
		Links:    links(p.FollowSymlinks),
		Replace:  p.Replace,
		Durable:  h.server.opts.DurableWrites,
		InPlace:  h.server.inPlace.begin,
		Mode:     optionalMode(p.Mode),
		Modified: p.Time(),
	}
	if p.ExpectedSHA256 != nil {
		options.ExpectedSHA256 = *p.ExpectedSHA256
	}
	h.changeWith(r, paths, func() (any, error) {
		data, err := p.Content()
		if err != nil {
			return nil, err
		}
		var result protocol.WriteFileResult
		options.Replaced = func() { result.Replaced = true }
		err = filesystem.WriteFile(r.Context(), paths[0], data, options)
		return result, err
	})
}

// createDirectory serves fs/createDirectory.
func (h *fileHandler) createDirectory(r *rpc.Request, p protocol.CreateDirectoryParams, paths []string) {
	h.change(r, paths, func() error {
		return filesystem.CreateDirectory(r.Context(), paths[0], filesystem.CreateDirectoryOptions{
			Links: links(p.FollowSymlinks), Recursive: p.Recursive, Mode: optionalMode(p.Mode),
		})
	})
}

// remove serves fs/remove.
func (h *fileHandler) remove(r *rpc.Request, p protocol.RemoveParams, paths []string) {
	h.change(r, paths, func() error {
		return filesystem.Remove(r.Context(), paths[0], filesystem.RemoveOptions{
			Links: links(p.FollowSymlinks), Recursive: p.Recursive, Force: p.Force,
		})
	})
}

// copy serves fs/copy.
func (h *fileHandler) copy(r *rpc.Request, p protocol.CopyParams, paths []string) {
	h.changeWith(r, paths, func() (any, error) {
		var result protocol.WriteFileResult
		err := filesystem.Copy(r.Context(), paths[0], paths[1], filesystem.CopyOptions{
			Recursive: p.Recursive, Durable: h.server.opts.DurableWrites, InPlace: h.server.inPlace.begin,
			Replaced: func() { result.Replaced = true },
		})
		return result, err
	})
}

// rename serves fs/rename.
func (h *fileHandler) rename(r *rpc.Request, p protocol.RenameParams, paths []string) {
	h.change(r, paths, func() error {
		return filesystem.Rename(r.Context(), paths[0], paths[1], filesystem.RenameOptions{
			Links: links(p.FollowSymlinks), NoReplace: p.NoReplace,
		})
	})
}

// setMetadata serves fs/setMetadata.
func (h *fileHandler) setMetadata(r *rpc.Request, p protocol.SetMetadataParams, paths []string) {
	changes := filesystem.Changes{Links: links(p.FollowSymlinks), Mode: optionalMode(p.Mode), Modified: p.Time()}
	if p.Size != nil {
		size := int64(*p.Size)
		changes.Size = &size
	}
	h.change(r, paths, func() error { return filesystem.SetMetadata(r.Context(), paths[0], changes) })
}

// symlink serves fs/symlink.
func (h *fileHandler) symlink(r *rpc.Request, p protocol.SymlinkParams, paths []string) {
	h.change(r, paths, func() error {
		return filesystem.Symlink(r.Context(), p.Text(), paths[0], links(p.FollowSymlinks))
	})
}

func links(follow bool) filesystem.Links {
	if follow {
		return filesystem.Follow
	}
	return filesystem.NoFollow
}

// optionalMode converts the Unix bits of a file's mode, or nil.
func optionalMode(bits *protocol.FileMode) *fs.FileMode {
	if bits == nil {
		return nil
	}
	mode := fs.FileMode(*bits).Perm()
	for bit, special := range map[protocol.FileMode]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if *bits&bit != 0 {
			mode |= special
		}
	}
	return &mode
}
