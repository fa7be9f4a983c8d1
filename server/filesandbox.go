package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"execserver/internal/filesystem"
	"execserver/internal/quota"
	"execserver/internal/rpc"
	"execserver/internal/sandbox"
	"execserver/protocol"
)

// Bounds of the helpers in sandboxes that run at the same time, for one connection and
// for all. Each helper is a process, which hangs if the file system does, so a request waits
// at most helperSlotTimeout for a slot.
const (
	maxConfinedShare  = 8
	maxConfined       = 256
	helperSlotTimeout = 5 * time.Second
)

// smallAnswerBytes exceeds the answer to any request about a single file, without the file's
// content.
const smallAnswerBytes = 64 << 10

// noSandbox is the error for a sandbox request to a program without sandboxes.
var noSandbox = sandbox.UnavailableError{Reason: "this program has none; run the client without one " +
	"(danger-full-access) if this machine is one itself"}

// Kinds of file methods: those that read files, those that only convert paths, and those
// whose answer may be long.
var (
	reading = map[string]bool{
		protocol.MethodGetMetadata: true, protocol.MethodReadFile: true, protocol.MethodReadDirectory: true,
		protocol.MethodWalk: true, protocol.MethodCanonicalize: true,
		protocol.MethodDiscoverRoots: true, protocol.MethodReadLink: true,
	}
	spelling = map[string]bool{protocol.MethodJoin: true, protocol.MethodParent: true}
	listing  = map[string]bool{protocol.MethodReadDirectory: true, protocol.MethodWalk: true}
)

// confinement returns the sandbox that a file method needs. nil means that the policy
// does not restrict the method. Even where everything may be read, a sandbox hides the
// secrets of this server and has its own /proc: outside, links in /proc describe this
// server and lead to files that other programs have open.
func confinement(method string, policy *protocol.Sandbox) *protocol.Sandbox {
	if policy == nil || policy.FullWrite() || spelling[method] {
		return nil
	}
	confined := *policy
	confined.Network = false
	return &confined
}

// serveConfined lets a helper in a sandbox serve a file request.
func (h *fileHandler) serveConfined(r *rpc.Request, policy *protocol.Sandbox, paths []string) {
	call := func(limit int) (any, error) {
		params := r.Params
		if r.Data != nil { // only fs/writeFile has data and needs a helper
			params = protocol.WithData(params, "dataBase64", r.Data)
		}
		return h.sandbox.call(r.Context(), policy, r.Method, params, limit)
	}
	switch {
	case r.Method == protocol.MethodWatch && policy.FullRead():
		p, err := protocol.DecodeParams[protocol.WatchParams](r.Params)
		if err != nil {
			r.Fail(err)
			return
		}
		h.watches.watchPermitted(r, p, paths, h.permitVisible)
	case r.Method == protocol.MethodWatch:
		r.Fail(protocol.Errorf(protocol.CodeInvalidRequest,
			"%s cannot be confined; ask for it without a sandbox, or with one that lets everything be read", r.Method))
	case r.Method == protocol.MethodSetMetadata && h.sandbox.landlocked():
		r.Fail(fileError(&fs.PathError{Op: "set the metadata of", Path: paths[0], Err: syscall.EROFS}))
	case r.Method == protocol.MethodOpen:
		p, err := protocol.DecodeParams[protocol.OpenParams](r.Params)
		if err != nil {
			r.Fail(err)
			return
		}
		h.handles.openWith(r, p, paths[0], func(ctx context.Context, path string, mode filesystem.HandleMode) (*os.File, error) {
			switch mode {
			case filesystem.HandleReplace:
				return h.sandbox.open(ctx, policy, path, openReplace, createMode(p))
			case filesystem.HandleUpdate:
				return h.sandbox.open(ctx, policy, path, openUpdate, createMode(p))
			}
			return h.sandbox.openToRead(ctx, policy, path, openRead)
		})
	case r.Method == protocol.MethodReadFile:
		p, err := protocol.DecodeParams[protocol.FileParams](r.Params)
		if err != nil {
			r.Fail(err)
			return
		}
		mode := openReadNoFollow
		if p.FollowSymlinks {
			mode = openRead
		}
		h.readOpened(r, func(ctx context.Context) (*filesystem.File, error) {
			f, err := h.sandbox.openToRead(ctx, policy, paths[0], mode)
			if err != nil {
				return nil, err
			}
			return filesystem.NewFile(f, 0)
		})
	case listing[r.Method]: // the length of the answer is unknown
		h.answerLarge(r, func(fits func(int) bool) (any, error) {
			if !fits(protocol.MaxAnswerBytes) {
				return nil, nil
			}
			return call(protocol.MaxAnswerBytes)
		})
	case reading[r.Method]:
		h.answer(r, func() (any, error) {
			if err := h.reserve(r, smallAnswerBytes); err != nil {
				return nil, err
			}
			return call(smallAnswerBytes)
		})
	default:
		h.changeWith(r, paths, func() (any, error) {
			defer h.server.inPlace.begin()() // it may be one
			return call(smallAnswerBytes)
		})
	}
}

// fileSandbox runs the helpers of one connection. A helper serves one file request in a
// sandbox.
type fileSandbox struct {
	*caller
	slots *quota.Semaphore // of helpers that run
}

// landlocked reports whether sandboxes consist of Landlock alone. Files are read-only in
// such a sandbox, but Landlock cannot prevent changes of modes and times.
func (h *fileSandbox) landlocked() bool {
	engine := h.server.sandbox
	if engine == nil {
		return false
	}
	means, _ := engine.Mechanism()
	return means == sandbox.MechanismLandlock
}

// openToRead opens a file in a sandbox, unless the policy lets everything be read. Even
// then it uses a sandbox for files that every sandbox hides and for files in /proc: those
// would describe this server, such as its memory or its environment, and links in /proc lead
// anywhere. The error is also that of the sandbox: outside, it would tell which of the hidden files
// exist.
func (h *fileSandbox) openToRead(ctx context.Context, policy *protocol.Sandbox, path, mode string) (*os.File, error) {
	if !policy.FullRead() {
		return h.open(ctx, policy, path, mode, 0)
	}
	f, err := filesystem.OpenNoMagicLinks(ctx, path, links(mode != openReadNoFollow))
	if err == nil && !h.hides(f) {
		return f, nil
	}
	if err == nil {
		_ = f.Close()
	} else if ctx.Err() != nil {
		return nil, err
	}
	return h.open(ctx, policy, path, mode, 0)
}

// hides reports whether every sandbox hides an open file, or replaces it by another one.
func (c *caller) hides(f *os.File) bool {
	engine := c.server.sandbox
	return filesystem.InProc(f) || engine != nil && engine.Hides(f)
}

// permitVisible returns an error for an open file that every sandbox hides.
func (c *caller) permitVisible(f *os.File) error {
	if c.hides(f) {
		return syscall.EACCES
	}
	return nil
}

// confine prepares the sandbox of a file request once a slot is free for its helper, first
// of the connection and then of the server. The caller must call release.
func (h *fileSandbox) confine(ctx context.Context, policy *protocol.Sandbox) (*sandbox.Confinement, error) {
	s := h.server
	if s.sandbox == nil {
		return nil, protocol.Errorf(protocol.CodeInternal, "%s", &noSandbox)
	}
	waiting, cancel := context.WithTimeoutCause(ctx, helperSlotTimeout, errNoSlot)
	defer cancel()
	if err := h.slots.Acquire(waiting, quota.None); err != nil {
		return nil, noSlot(err, "this connection", h.slots.Check(quota.None), maxConfinedShare)
	}
	of := h.principal.QuotaKey()
	if err := s.confined.Acquire(waiting, of); err != nil {
		err = noSlot(err, "the server", s.confined.Check(of), maxConfined)
		h.slots.Release(quota.None)
		return nil, err
	}
	s.counters.confined.Add(ConfinedFiles)
	confinement, err := s.sandbox.Confine(policy, sandbox.Context{TmpDir: os.Getenv("TMPDIR")})
	if err != nil {
		h.releaseSlots()
		return nil, protocol.Errorf(protocol.CodeInternal, "%s", err)
	}
	return confinement, nil
}

// errNoSlot is the cause when no slot for a helper has become free in time.
var errNoSlot = errors.New("no slot for a helper")

// noSlot returns the client's error when no slot was free. refusal says whether slots are free
// now, and whose says in the text to whom they belong.
func noSlot(err error, whose string, refusal *quota.Error, limit int) error {
	if !errors.Is(err, errNoSlot) {
		return err
	}
	has := fmt.Sprintf("%s has its limit of %d file operations in sandboxes under way", whose, limit)
	if refusal != nil && refusal.Principal {
		has = refusal.Of("has", "file operations in sandboxes under way")
	}
	return protocol.Errorf(protocol.CodeInternal, "%s, and none has ended for %v; perhaps a file system does not answer",
		has, helperSlotTimeout)
}

// release releases the result of confine.
func (h *fileSandbox) release(confinement *sandbox.Confinement) {
	confinement.Release()
	h.releaseSlots()
}

func (h *fileSandbox) releaseSlots() {
	h.server.confined.Release(h.principal.QuotaKey())
	h.slots.Release(quota.None)
}

// rawAnswer is the encoded answer of a helper.
type rawAnswer json.RawMessage

// AppendJSON implements protocol.Appender.
func (a rawAnswer) AppendJSON(b []byte) []byte { return append(b, a...) }
