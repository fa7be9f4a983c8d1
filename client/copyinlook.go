package client

import (
	"context"
	"errors"

	"execserver/protocol"
)

// look asks how a directory is on the machine. It does not wait for the answer, and asks
// nothing about a directory whose parent did not exist.
func (c *copyIn) look(d *inDir) error {
	if p := d.parent; p != nil {
		select {
		case <-p.looked:
			if p.fresh || p.err != nil {
				d.fresh = p.fresh
				d.err = p.err
				close(d.looked)
				return nil
			}
		default:
		}
	}
	select {
	case c.looks <- struct{}{}:
		d.holds = true
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
	d.entries = make(map[string]*farEntry)
	params := c.link.listing(d.far, c.details)
	return c.list(params, func(entries []protocol.DirectoryEntry, next *protocol.FileParams, err error) {
		c.looked(d, entries, next, err)
	})
}

// maxLooked bounds the memory of the names on the machine that a copy holds.
const maxLooked = 64 << 20

// looked takes a page of a directory, and asks for the next one.
func (c *copyIn) looked(d *inDir, entries []protocol.DirectoryEntry, next *protocol.FileParams, err error) {
	switch {
	case isNotExist(err) && len(d.entries) == 0:
		d.fresh = true
	case err != nil && !errors.Is(err, ErrTruncated): // what is not listed is copied
		d.err = err
	default:
		size := int64(0)
		for _, e := range entries {
			d.entries[e.FileName] = entryOf(e)
			size += int64(listedSize(e))
		}
		if next == nil {
			break
		}
		d.counted += size
		if c.known.Add(size) <= maxLooked { // what is beyond is copied again
			err := c.follow(protocol.MethodReadDirectory, *next, nil, func(a answer, err error) {
				entries, after, err := c.page(*next, a, err)
				c.looked(d, entries, after, err)
			})
			if err == nil {
				return
			}
			d.err = err
		}
	}
	close(d.looked)
}
