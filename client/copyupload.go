package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"

	"execserver/internal/rpc"
	"execserver/protocol"
)

// upload writes a file of the machine in blocks, one after the other, so that the file has
// no gaps whenever it ends: another upload can continue it.
type upload struct {
	*copying
	file *os.File
	name string // for the progress
	far  string
	size int64
	mode protocol.OpenMode
}

// run copies the file from an offset on.
func (u *upload) run(from int64) error {
	for {
		handle, epoch, err := u.open()
		if err != nil {
			return err
		}
		from, err = u.write(handle, from)
		if err == nil {
			err = u.close(handle)
		} else if !u.lost(err, epoch) {
			u.drop(handle)
		}
		switch {
		case u.lost(err, epoch):
			if u.mode == protocol.OpenReplace {
				from = 0 // another open empties the file
			}
		default:
			return err
		}
	}
}

// lost reports whether an error says that the connection broke, with which the handle
// ended.
func (u *upload) lost(err error, epoch int) bool {
	return errors.As(err, new(*brokenError)) || isNotExist(err) && u.link.currentEpoch() != epoch
}

// open opens the file under a new handle.
func (u *upload) open() (handle string, epoch int, err error) {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	handle = hex.EncodeToString(id[:])
	params := protocol.OpenParams{HandleID: handle, Path: u.link.machine.uri(u.far), Mode: u.mode}
	for {
		epoch, err = u.link.tryOpening(u.ctx, protocol.MethodOpen, params, func(ctx context.Context, conn *rpc.Conn) {
			_, _ = conn.Call(ctx, protocol.MethodClose, protocol.CloseParams{HandleID: handle}) // if it fails, the handle ends with the connection
		})
		if !errors.As(err, new(*brokenError)) {
			return handle, epoch, err
		}
	}
}

func (u *upload) close(handle string) error {
	_, err := u.link.try(u.ctx, protocol.MethodClose, protocol.CloseParams{HandleID: handle})
	return err
}

// drop closes a handle that is of no use any more. It does not wait, because the copy may
// have ended.
func (c *copying) drop(handle string) {
	c.fs.env.run(func() {
		ctx, cancel := context.WithTimeout(c.fs.env.ctx, c.link.undoTimeout())
		defer cancel()
		_, _ = c.link.try(ctx, protocol.MethodClose, protocol.CloseParams{HandleID: handle}) // if it fails, the handle ends with the connection
	})
}

// block is a block on its way.
type block struct {
	bytes int
	p     passage
	await func(context.Context) (answer, error)
}

// write sends the blocks, and returns up to where the server has written them.
func (u *upload) write(handle string, from int64) (written int64, err error) {
	ctx, cancel := context.WithCancelCause(u.ctx)
	defer cancel(nil)
	flight := make(chan block, maxCalls)
	done := make(chan struct{})
	written = from
	go func() { // ends when write has sent everything
		defer close(done)
		for b := range flight {
			_, failure := b.await(u.ctx)
			if failure == nil {
				u.window.answered(b.p)
				written += int64(b.bytes)
				u.moved(u.name, int64(b.bytes))
			} else if err == nil {
				err = failure // those after it fail, too
				cancel(failure)
			}
			u.window.leave(b.p)
		}
	}()
	sendErr := u.sendBlocks(ctx, handle, from, flight)
	close(flight)
	<-done
	if err == nil {
		err = sendErr
	}
	return written, err
}

// sendBlocks sends the blocks from an offset on.
func (u *upload) sendBlocks(ctx context.Context, handle string, offset int64, flight chan<- block) error {
	for offset < u.size {
		size := int(min(int64(u.window.block()), u.size-offset))
		p, err := u.window.enter(ctx, size+requestBytes, false)
		if err != nil {
			return err
		}
		data := make([]byte, size)
		n, err := u.file.ReadAt(data, offset)
		if n < size {
			u.window.leave(p)
			if err == io.EOF {
				err = errShrunk
			}
			return err
		}
		await, err := u.link.begin(ctx, protocol.MethodWriteBlock, protocol.WriteBlockParams{HandleID: handle, Offset: uint64(offset), Chunk: data})
		if err != nil {
			u.window.leave(p)
			return err
		}
		flight <- block{size, p, await}
		offset += int64(size)
	}
	return nil
}

// errShrunk says that a file lost content while it was copied.
var errShrunk = errors.New("the file became shorter while it was copied")
