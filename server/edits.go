package server

import (
	"io/fs"

	"execserver/filesystem"
	"execserver/protocol"
	"execserver/rpc"
)

// writeFile serves fs/writeFile.
func (c *connection) writeFile(r *rpc.Request, p protocol.WriteFile) {
	paths, ok := c.native(r, p.Sandbox, p.Path)
	if !ok {
		return
	}
	options := filesystem.WriteOptions{
		Links:          links(p.FollowSymlinks),
		ExpectedSHA256: p.ExpectedSHA256,
		Durable:        c.server.opts.DurableWrites,
		InPlace:        c.server.inPlace.begin,
	}
	if p.Mode != nil {
		mode := fileMode(*p.Mode)
		options.Mode = &mode
	}
	c.change(r, paths, func() error {
		data, err := p.Data()
		if err != nil {
			return err
		}
		return filesystem.WriteFile(r.Context(), paths[0], data, options)
	})
}

// fileMode makes the mode of a file of its bits as they are on Unix.
func fileMode(bits uint32) fs.FileMode {
	mode := fs.FileMode(bits).Perm()
	for bit, special := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			mode |= special
		}
	}
	return mode
}

// createDirectory serves fs/createDirectory.
func (c *connection) createDirectory(r *rpc.Request, p protocol.CreateDirectory) {
	paths, ok := c.native(r, p.Sandbox, p.Path)
	if !ok {
		return
	}
	c.change(r, paths, func() error {
		return filesystem.CreateDirectory(r.Context(), paths[0], filesystem.CreateDirectoryOptions{
			Links: links(p.FollowSymlinks), Recursive: p.Recursive,
		})
	})
}

// remove serves fs/remove.
func (c *connection) remove(r *rpc.Request, p protocol.Remove) {
	paths, ok := c.native(r, p.Sandbox, p.Path)
	if !ok {
		return
	}
	c.change(r, paths, func() error {
		return filesystem.Remove(r.Context(), paths[0], filesystem.RemoveOptions{
			Links: links(p.FollowSymlinks), Recursive: p.Recursive, Force: p.Force,
		})
	})
}

// copy serves fs/copy.
func (c *connection) copy(r *rpc.Request, p protocol.Copy) {
	paths, ok := c.native(r, p.Sandbox, p.SourcePath, p.DestinationPath)
	if !ok {
		return
	}
	c.change(r, paths, func() error {
		return filesystem.Copy(r.Context(), paths[0], paths[1], filesystem.CopyOptions{
			Recursive: p.Recursive, Durable: c.server.opts.DurableWrites, InPlace: c.server.inPlace.begin,
		})
	})
}

// rename serves fs/rename.
func (c *connection) rename(r *rpc.Request, p protocol.Rename) {
	paths, ok := c.native(r, p.Sandbox, p.SourcePath, p.DestinationPath)
	if !ok {
		return
	}
	c.change(r, paths, func() error {
		return filesystem.Rename(r.Context(), paths[0], paths[1], filesystem.RenameOptions{
			Links: links(p.FollowSymlinks), NoReplace: p.NoReplace,
		})
	})
}
