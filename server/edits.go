package server

import (
	"execserver/internal/filesystem"
	"execserver/internal/rpc"
	"execserver/protocol"
)

// writeFile serves fs/writeFile.
func (c *connection) writeFile(r *rpc.Request, p protocol.WriteFileParams, paths []string) {
	options := filesystem.WriteOptions{
		Links:    links(p.FollowSymlinks),
		Replace:  p.Replace,
		Durable:  c.server.opts.DurableWrites,
		InPlace:  c.server.inPlace.begin,
		Mode:     optionalMode(p.Mode),
		Modified: p.Time(),
	}
	if p.ExpectedSHA256 != nil {
		options.ExpectedSHA256 = *p.ExpectedSHA256
	}
	c.changeWith(r, paths, func() (any, error) {
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
func (c *connection) createDirectory(r *rpc.Request, p protocol.CreateDirectoryParams, paths []string) {
	c.change(r, paths, func() error {
		return filesystem.CreateDirectory(r.Context(), paths[0], filesystem.CreateDirectoryOptions{
			Links: links(p.FollowSymlinks), Recursive: p.Recursive, Mode: optionalMode(p.Mode),
		})
	})
}

// remove serves fs/remove.
func (c *connection) remove(r *rpc.Request, p protocol.RemoveParams, paths []string) {
	c.change(r, paths, func() error {
		return filesystem.Remove(r.Context(), paths[0], filesystem.RemoveOptions{
			Links: links(p.FollowSymlinks), Recursive: p.Recursive, Force: p.Force,
		})
	})
}

// copy serves fs/copy.
func (c *connection) copy(r *rpc.Request, p protocol.CopyParams, paths []string) {
	c.changeWith(r, paths, func() (any, error) {
		var result protocol.WriteFileResult
		err := filesystem.Copy(r.Context(), paths[0], paths[1], filesystem.CopyOptions{
			Recursive: p.Recursive, Durable: c.server.opts.DurableWrites, InPlace: c.server.inPlace.begin,
			Replaced: func() { result.Replaced = true },
		})
		return result, err
	})
}

// rename serves fs/rename.
func (c *connection) rename(r *rpc.Request, p protocol.RenameParams, paths []string) {
	c.change(r, paths, func() error {
		return filesystem.Rename(r.Context(), paths[0], paths[1], filesystem.RenameOptions{
			Links: links(p.FollowSymlinks), NoReplace: p.NoReplace,
		})
	})
}
