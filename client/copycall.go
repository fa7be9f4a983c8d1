package client

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"time"

	"execserver/protocol"
)

// Requests of a copy. They are on their way together: none waits for the answer to another.

// requestBytes is about what a request and its answer take beside the content.
const requestBytes = 256

// begin sends a request over the current connection. await returns a *brokenError if the
// connection ended before the answer. Requests take effect in the order in which begin
// sends them, as far as PROTOCOL.md says so.
func (l *link) begin(ctx context.Context, method string, params any) (await func(context.Context) (answer, error), err error) {
	if err := l.permit(method); err != nil {
		return nil, err
	}
	conn, _, err := l.current(ctx)
	if err != nil {
		return nil, err
	}
	wait, err := conn.BeginBulk(method, params)
	if err != nil {
		failure := l.failed(ctx, conn, method, err) // err is nil for the caller
		return func(context.Context) (answer, error) { return answer{method: method}, failure }, nil
	}
	return func(ctx context.Context) (answer, error) {
		raw, data, err := wait(ctx)
		return answer{method, raw, data}, l.failed(ctx, conn, method, err)
	}, nil
}

// answer is the result of a request. data is nil unless the message was binary.
type answer struct {
	method string
	raw    json.RawMessage
	data   []byte
}

// decode decodes the result.
func (a answer) decode(result any) error { return understandBulk(a.method, a.raw, a.data, result) }

// send makes a request that may be carried out twice, and calls done with the answer. bytes
// is the size of its content, in whatever direction. It waits for room in the window and
// for a connection, not for the answer. ready, if not nil, waits for the answer to an
// earlier request that this one needs. The first attempt follows that request on the
// connection and need not wait; a second one, after a broken connection, must.
func (c *copying) send(method string, params any, bytes int, ready func() error, done func(a answer, err error)) error {
	return c.sendOne(method, params, bytes, false, ready, done)
}

// follow is like send for a request that follows from an answer. It waits for no room,
// because the answer takes some until it is done with.
func (c *copying) follow(method string, params any, ready func() error, done func(a answer, err error)) error {
	return c.sendOne(method, params, 0, true, ready, done)
}

func (c *copying) sendOne(method string, params any, bytes int, force bool, ready func() error, done func(a answer, err error)) error {
	p, err := c.window.enter(c.ctx, bytes+requestBytes, force)
	if err != nil {
		return err
	}
	await, err := c.link.begin(c.ctx, method, params)
	if err != nil {
		c.window.leave(p)
		return err
	}
	c.requests.Go(func() {
		defer c.window.leave(p)
		a, err := await(c.ctx)
		broken := errors.As(err, new(*brokenError))
		if !broken {
			c.window.answered(p)
		}
		// What is missing may be what an earlier request makes over a later connection.
		if again := broken || ready != nil && isNotExist(err); again {
			err = nil
			if ready != nil {
				err = ready()
			}
			if err == nil {
				a, err = c.link.repeatBulk(c.ctx, method, params)
			}
		}
		done(a, err)
	})
	return nil
}

// ask makes a request that may be carried out twice, and waits for the answer.
func (c *copying) ask(method string, params any) error {
	_, err := c.link.repeat(c.ctx, method, params)
	return err
}

// repeatBulk is like repeat, for an answer that may be binary.
func (l *link) repeatBulk(ctx context.Context, method string, params any) (answer, error) {
	for {
		raw, data, err := l.tryBulk(ctx, method, params)
		if !errors.As(err, new(*brokenError)) {
			return answer{method, raw, data}, err
		}
	}
}

// beside runs work of several requests beside other work, when there is not too much of it.
func (c *copying) beside(work func()) error {
	select {
	case c.large <- struct{}{}:
	case <-c.ctx.Done():
		return context.Cause(c.ctx)
	}
	c.requests.Go(func() {
		defer func() { <-c.large }()
		work()
	})
	return nil
}

// farEntry is a name in a directory of the machine.
type farEntry struct {
	kind     protocol.FileKind // as far as the server tells it
	mode     *protocol.FileMode
	size     int64
	modified time.Time
	target   string // of a link
}

// regular reports whether the entry is a file, whose size and time are known.
func (e *farEntry) regular() bool { return e != nil && e.mode != nil && e.kind == protocol.KindFile }

// perm returns the permission bits of a copy, or those that a file has otherwise.
func (e *farEntry) perm(otherwise fs.FileMode) fs.FileMode {
	if e.mode == nil {
		return otherwise
	}
	return fs.FileMode(*e.mode & 0o777)
}

// meta describes the entry as the server did.
func (e *farEntry) meta() *protocol.FileMetadata {
	m := &protocol.FileMetadata{IsFile: true, Size: e.size, ModifiedAtMs: e.modified.UnixMilli()}
	if e.mode != nil {
		m.FileDetails = &protocol.FileDetails{Kind: e.kind, Mode: *e.mode, ModifiedNs: uint32(e.modified.Nanosecond() % 1e6)}
	}
	return m
}

// is reports whether the entry has permission bits.
func (e *farEntry) is(mode protocol.FileMode) bool { return e.mode != nil && *e.mode&0o777 == mode }

// entryOf converts an entry of a listing. Without details, the kind is that of a link's
// target.
func entryOf(e protocol.DirectoryEntry) *farEntry {
	switch {
	case e.EntryDetails != nil:
		return &farEntry{e.Kind, &e.Mode, max(e.Size, 0), wireTime(e.ModifiedAtMs, e.ModifiedNs), e.Text()}
	case e.IsDirectory:
		return &farEntry{kind: protocol.KindDirectory}
	case e.IsFile:
		return &farEntry{kind: protocol.KindFile}
	}
	return &farEntry{}
}

// entryAt converts the description of a path.
func entryAt(m *protocol.FileMetadata) *farEntry {
	e := &farEntry{size: max(m.Size, 0), modified: time.UnixMilli(m.ModifiedAtMs)}
	switch {
	case m.FileDetails != nil:
		e.kind, e.mode, e.target = m.Kind, &m.Mode, m.Text()
		e.modified = wireTime(m.ModifiedAtMs, m.ModifiedNs)
	case m.IsDirectory && m.IsSymlink:
		e.kind = protocol.KindSymlink
	case m.IsDirectory:
		e.kind = protocol.KindDirectory
	case m.IsFile:
		e.kind = protocol.KindFile
	}
	return e
}

func wireTime(ms int64, ns uint32) time.Time {
	return time.UnixMilli(ms).Add(time.Duration(min(ns, 999999)))
}

// list asks for a directory of the machine, or for a page of it. next asks for the page
// after it, and is nil if there is none.
func (c *copying) list(params protocol.FileParams, done func(entries []protocol.DirectoryEntry, next *protocol.FileParams, err error)) error {
	return c.send(protocol.MethodReadDirectory, params, requestBytes, nil, func(a answer, err error) {
		done(c.page(params, a, err))
	})
}

// page decodes the answer to a request for a directory.
func (c *copying) page(params protocol.FileParams, a answer, err error) ([]protocol.DirectoryEntry, *protocol.FileParams, error) {
	var page protocol.ReadDirectoryResult
	if err == nil {
		err = a.decode(&page)
	}
	if err != nil {
		return nil, nil, err
	}
	for i := range page.Entries {
		page.Entries[i].FileName = c.link.exactName(page.Entries[i])
	}
	after, err := following(params, &page)
	if after == nil {
		return page.Entries, nil, err
	}
	params.After = after
	return page.Entries, &params, nil
}

// listed is like list, but waits for the answer.
func (c *copying) listed(params protocol.FileParams) (entries []protocol.DirectoryEntry, next *protocol.FileParams, err error) {
	done := make(chan struct{})
	sendErr := c.list(params, func(list []protocol.DirectoryEntry, after *protocol.FileParams, listErr error) {
		entries, next, err = list, after, listErr
		close(done)
	})
	if sendErr != nil {
		return nil, nil, sendErr
	}
	<-done
	return entries, next, err
}

// at describes a path of the machine; link means the link itself, not its target.
func (c *copying) at(path string, link bool) (*farEntry, error) {
	meta, err := c.link.metadata(c.ctx, path, c.details && link)
	if err != nil {
		return nil, err
	}
	return entryAt(meta), nil
}

// joinFar returns the path of a name in a directory of the machine.
func (c *copying) joinFar(dir, name string) string {
	separator := "/"
	if c.link.machine.goos() == "windows" {
		separator = `\`
	}
	if strings.HasSuffix(dir, separator) {
		return dir + name
	}
	return dir + separator + name
}
