package server

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"execserver/internal/filesystem"
	"execserver/internal/quota"
	"execserver/internal/rpc"
	"execserver/internal/session"
	"execserver/protocol"
)

// maxFileOperations bounds the file operations in progress for all connections. Each
// occupies a thread, forever if the file system does not answer, and the number of threads
// is limited.
const maxFileOperations = 4096

// fileHandler serves the methods that name files: reads (fileread.go), writes (filewrite.go),
// and the search for capabilities (discovery.go). A request with a sandbox takes another way
// (filesandbox.go).
type fileHandler struct {
	*fileOperations
	handles *handleHandler
	watches *watchHandler
	sandbox *fileSandbox
}

func newFileHandler(of *caller, conn *rpc.Conn) *fileHandler {
	operations := &fileOperations{caller: of}
	return &fileHandler{
		fileOperations: operations,
		handles:        newHandleHandler(operations),
		watches:        newWatchHandler(operations, conn),
		sandbox:        &fileSandbox{caller: of, slots: quota.NewSemaphore(maxConfinedShare)},
	}
}

// close closes the files of a connection that has ended.
func (h *fileHandler) close() {
	h.changes.Close()
	h.watches.missing.Close()
	h.handles.files.Close()
}

// fileOperations runs the file operations of one connection: concurrently those that change
// nothing, and in order of arrival those that change something.
type fileOperations struct {
	*caller
}

// answer serves a request that changes nothing, concurrently with all others.
func (o *fileOperations) answer(r *rpc.Request, do func() (any, error)) {
	r.FilePool(func() { o.operate(r, do) })
}

// firstListingBytes is the first reservation for an answer of unknown length.
const firstListingBytes = 64 << 10

// answerLarge is like answer, for an answer that may be as large as clients accept and
// whose size is not known before. It may call do several times; see reserveInSteps.
func (o *fileOperations) answerLarge(r *rpc.Request, do func(fits func(bytes int) bool) (any, error)) {
	r.HeavyFilePool(func() {
		o.operate(r, func() (any, error) {
			return o.reserveInSteps(r, firstListingBytes, do)
		})
	})
}

// change serves a request that changes something at these paths, in order.
func (o *fileOperations) change(r *rpc.Request, paths []string, do func() error) {
	o.changeWith(r, paths, func() (any, error) { return protocol.Empty{}, do() })
}

// changeWith is like change, for a request whose answer is not empty.
func (o *fileOperations) changeWith(r *rpc.Request, paths []string, do func() (any, error)) {
	x := &session.Change{Drop: r.Drop}
	x.Begin = func() {
		r.Go(func() {
			defer o.changes.Done(x)
			o.operate(r, func() (any, error) {
				if err := o.auditChange(r.Method, paths); err != nil {
					return nil, err
				}
				return do()
			})
		})
	}
	o.changes.Submit(x)
}

// operate runs a file operation that may block, and answers with its result.
func (o *fileOperations) operate(r *rpc.Request, do func() (any, error)) {
	if r.Context().Err() != nil {
		r.Drop()
		return
	}
	if err := o.beginOperation(); err != nil {
		r.Fail(err)
		return
	}
	defer o.endOperation()
	result, err := do()
	if err != nil {
		r.Fail(fileError(err))
		return
	}
	r.Reply(result)
}

// reserve is r.ReserveFile within an operation, which does not count as in progress while it
// waits.
func (o *fileOperations) reserve(r *rpc.Request, n int) error {
	o.endOperation()
	defer o.server.quotas.operations.Add(o.principal.QuotaKey())
	return r.ReserveFile(n)
}

// reserveInSteps reserves memory for an answer of unknown size, first n bytes. do makes
// the answer and calls fits with the size in bytes that it will have. If the reservation
// cannot grow without waiting, fits returns false and do must return; reserveInSteps drops
// its result, reserves twice as much, and calls do again. No request waits while it holds
// memory.
func (o *fileOperations) reserveInSteps(r *rpc.Request, n int, do func(fits func(bytes int) bool) (any, error)) (any, error) {
	for {
		if err := o.reserve(r, n); err != nil {
			return nil, err
		}
		short := false
		answer, err := do(func(bytes int) bool {
			if bytes <= n {
				return true
			}
			n = 2 * bytes
			short = !r.GrowFile(n)
			return !short
		})
		if err != nil || !short {
			return answer, err
		}
	}
}

// beginOperation counts one more file operation of the principal, unless it may have no
// more. The caller must call endOperation.
func (o *fileOperations) beginOperation() error {
	refusal := o.server.quotas.operations.Take(o.principal.QuotaKey())
	switch {
	case refusal == nil:
		return nil
	case refusal.Principal:
		return protocol.Errorf(protocol.CodeInternal,
			"%s; perhaps a file system does not answer", refusal.Of("has", "file operations under way"))
	}
	return protocol.Errorf(protocol.CodeInternal,
		"the server has its limit of %d file operations under way; perhaps a file system does not answer", refusal.Limit)
}

func (o *fileOperations) endOperation() { o.server.quotas.operations.Release(o.principal.QuotaKey()) }

// fileError gives a file system error its code and text on the wire (PROTOCOL.md, "File
// methods").
func fileError(err error) error {
	if coded, ok := errors.AsType[*protocol.Error](err); ok {
		return coded
	}
	kind, text := filesystem.Classify(err)
	if changed, ok := errors.AsType[*filesystem.ChangedError](err); ok {
		e := protocol.Errorf(protocol.CodeFileChanged, "%s", text)
		var data protocol.FileChanged
		if changed.Got != "" {
			data.SHA256 = &changed.Got
		}
		e.Data, _ = json.Marshal(data) // a string always encodes
		return e
	}
	switch kind {
	case filesystem.NotFound:
		return protocol.Errorf(protocol.CodeNotFound, "%s", text)
	case filesystem.InvalidInput:
		return protocol.Errorf(protocol.CodeInvalidRequest, "%s", text)
	}
	return protocol.Errorf(protocol.CodeInternal, "%s", text)
}

// unfinished counts the writes in place that must finish before the program ends. The zero
// value is ready to use.
type unfinished struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n is 0 again
}

// begin counts a write until done is called.
func (u *unfinished) begin() (done func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n == 0 {
		u.none = make(chan struct{})
	}
	u.n++
	return u.end
}

func (u *unfinished) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n--; u.n == 0 {
		close(u.none)
	}
}

// wait waits until there are none, or returns the context's cause.
func (u *unfinished) wait(ctx context.Context) error {
	u.mu.Lock()
	n, none := u.n, u.none
	u.mu.Unlock()
	if n == 0 {
		return nil
	}
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
