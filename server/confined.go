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
// for all. Each helper is a process. If the file system does not answer, neither does its
// helper; a request waits for a place for confinedPatience.
const (
	maxConfinedShare = 8
	maxConfined      = 256
	confinedPatience = 5 * time.Second
)

// smallAnswerBytes is more than the answer to any request about a single file needs,
// without the file's content.
const smallAnswerBytes = 64 << 10

// noSandbox is the error for a sandbox request to a program without sandboxes.
var noSandbox = sandbox.UnavailableError{Reason: "this program has none; run the client without one " +
	"(danger-full-access) if this machine is one itself"}

// What file methods do, as far as it concerns a sandbox.
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
// server and lead to what other programs have open.
func confinement(method string, policy *protocol.Sandbox) *protocol.Sandbox {
	if policy == nil || policy.FullWrite() || spelling[method] {
		return nil
	}
	confined := *policy
	confined.Network = false
	return &confined
}

// serveConfined lets a helper in a sandbox serve a file request.
func (c *connection) serveConfined(r *rpc.Request, policy *protocol.Sandbox, paths []string) {
	call := func(limit int) (any, error) {
		params := r.Params
		if r.Data != nil { // only fs/writeFile has data and needs a helper
			params = protocol.WithData(params, "dataBase64", r.Data)
		}
		return c.callConfined(r.Context(), policy, r.Method, params, limit)
	}
	switch {
	case r.Method == protocol.MethodWatch && policy.FullRead():
		p, err := protocol.DecodeParams[protocol.WatchParams](r.Params)
		if err != nil {
			r.Fail(err)
			return
		}
		c.watchIf(r, p, paths, c.mayWatch)
	case r.Method == protocol.MethodWatch:
		r.Fail(protocol.Errorf(protocol.CodeInvalidRequest,
			"%s cannot be confined; ask for it without a sandbox, or with one that lets everything be read", r.Method))
	case r.Method == protocol.MethodSetMetadata && c.landlocked():
		r.Fail(fileError(&fs.PathError{Op: "set the metadata of", Path: paths[0], Err: syscall.EROFS}))
	case r.Method == protocol.MethodOpen:
		p, err := protocol.DecodeParams[protocol.OpenParams](r.Params)
		if err != nil {
			r.Fail(err)
			return
		}
		c.openWith(r, p, paths[0], func(ctx context.Context, path string, mode filesystem.HandleMode) (*os.File, error) {
			switch mode {
			case filesystem.HandleReplace:
				return c.openConfined(ctx, policy, path, openReplace, createMode(p))
			case filesystem.HandleUpdate:
				return c.openConfined(ctx, policy, path, openUpdate, createMode(p))
			}
			return c.openToRead(ctx, policy, path, openRead)
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
		c.readOpened(r, func(ctx context.Context) (*filesystem.File, error) {
			f, err := c.openToRead(ctx, policy, paths[0], mode)
			if err != nil {
				return nil, err
			}
			return filesystem.NewFile(f, 0)
		})
	case listing[r.Method]: // the length of the answer is unknown
		c.answerLarge(r, func(fits func(int) bool) (any, error) {
			if !fits(protocol.MaxAnswerBytes) {
				return nil, nil
			}
			return call(protocol.MaxAnswerBytes)
		})
	case reading[r.Method]:
		c.answer(r, func() (any, error) {
			if err := c.reserve(r, smallAnswerBytes); err != nil {
				return nil, err
			}
			return call(smallAnswerBytes)
		})
	default:
		c.changes.submit(func(x *change) {
			r.Go(func() {
				defer c.changes.done(x)
				defer c.server.inPlace.begin()() // as far as the server can tell
				c.operate(r, func() (any, error) {
					if err := c.auditChange(r.Method, paths); err != nil {
						return nil, err
					}
					return call(smallAnswerBytes)
				})
			})
		})
	}
}

// landlocked reports whether sandboxes consist of Landlock alone. That restricts neither
// modes nor times, and no file is writable in it.
func (c *connection) landlocked() bool {
	engine := c.server.sandbox
	if engine == nil {
		return false
	}
	means, _ := engine.Means()
	return means == sandbox.MeansLandlock
}

// openToRead opens a file in a sandbox, unless the policy lets everything be read. Even
// then it uses a sandbox for a file in /proc, which would describe this server, such as
// its memory or its environment, for what a link in /proc leads to, and for files that
// every sandbox hides.
func (c *connection) openToRead(ctx context.Context, policy *protocol.Sandbox, path, mode string) (*os.File, error) {
	if !policy.FullRead() {
		return c.openConfined(ctx, policy, path, mode, 0)
	}
	f, err := filesystem.OpenPlain(ctx, path, links(mode != openReadNoFollow))
	if err == nil && !c.hides(f) {
		return f, nil
	}
	if err == nil {
		_ = f.Close()
	} else if !errors.Is(err, filesystem.ErrMagicLink) {
		return nil, err
	}
	return c.openConfined(ctx, policy, path, mode, 0)
}

// hides reports whether every sandbox hides an open file, or shows another one in its
// place.
func (c *connection) hides(f *os.File) bool {
	engine := c.server.sandbox
	return filesystem.InProc(f) || engine != nil && engine.Hides(f)
}

// mayWatch refuses to watch what a sandbox does not show. A missing file is no reason.
func (c *connection) mayWatch(path string) error {
	f, err := filesystem.OpenPath(path, filesystem.Follow)
	if err == nil {
		defer f.Close()
		if !c.hides(f) {
			return nil
		}
	} else if !errors.Is(err, filesystem.ErrMagicLink) {
		return nil
	}
	return &fs.PathError{Op: "watch", Path: path, Err: syscall.EACCES}
}

// discoverConfined reads a capability root in the requested sandbox. It returns nil if
// there is none that restricts reading.
func (c *connection) discoverConfined(ctx context.Context, root protocol.CapabilityRoot) *protocol.DiscoveredRoot {
	policy, err := c.filePolicy(protocol.MethodDiscoverRoots, root.Sandbox)
	if policy == nil && err == nil {
		return nil
	}
	var found protocol.DiscoveredRoots
	if err == nil {
		var params json.RawMessage
		var answer rawAnswer
		root.Sandbox = nil
		if params, err = json.Marshal(protocol.DiscoverRootsParams{Roots: []protocol.CapabilityRoot{root}}); err == nil {
			answer, err = c.callConfined(ctx, policy, protocol.MethodDiscoverRoots, params, protocol.MaxAnswerBytes)
		}
		if err == nil {
			err = json.Unmarshal(answer, &found)
		}
		if err == nil && len(found.Roots) != 1 {
			err = errors.New("the helper's answer cannot be understood")
		}
	}
	if err != nil {
		text := fmt.Sprintf("failed to inspect capability root %s: %s", root.Path, err)
		return &protocol.DiscoveredRoot{
			ID: root.ID, Path: root.Path, Error: &text,
			Skills: []protocol.DiscoveredSkill{}, NamespaceManifests: []protocol.DiscoveredFile{}, Warnings: []string{},
		}
	}
	return &found.Roots[0]
}

// confine prepares the sandbox of a file request once there is a place for its helper,
// among those of the connection and then among all.
func (c *connection) confine(ctx context.Context, policy *protocol.Sandbox) (*sandbox.Confinement, error) {
	s := c.server
	if s.sandbox == nil {
		return nil, protocol.Errorf(protocol.CodeInternal, "%s", &noSandbox)
	}
	waiting, cancel := context.WithTimeoutCause(ctx, confinedPatience, errNoPlace)
	defer cancel()
	if err := c.confined.Acquire(waiting, quota.Everybody); err != nil {
		return nil, noPlace(err, "this connection", c.confined.Check(quota.Everybody), maxConfinedShare)
	}
	of := c.principal.QuotaKey()
	if err := s.confined.Acquire(waiting, of); err != nil {
		err = noPlace(err, "the server", s.confined.Check(of), maxConfined)
		c.confined.Release(quota.Everybody)
		return nil, err
	}
	s.counters.confined.Add(ConfinedFiles)
	confinement, err := s.sandbox.Confine(policy, sandbox.Context{TmpDir: os.Getenv("TMPDIR")})
	if err != nil {
		c.leavePlaces()
		return nil, protocol.Errorf(protocol.CodeInternal, "%s", err)
	}
	return confinement, nil
}

// errNoPlace is the cause when no place for a helper has become free in time.
var errNoPlace = errors.New("no place for a helper")

// noPlace returns why there was no place for a helper: refusal says how many there are now.
// whose names their owner.
func noPlace(err error, whose string, refusal *quota.Error, limit int) error {
	if !errors.Is(err, errNoPlace) {
		return err
	}
	has := fmt.Sprintf("%s has its limit of %d file operations in sandboxes under way", whose, limit)
	if refusal != nil && refusal.Principal {
		has = refusal.Of("has", "file operations in sandboxes under way")
	}
	return protocol.Errorf(protocol.CodeInternal, "%s, and none has ended for %v; perhaps a file system does not answer",
		has, confinedPatience)
}

// unconfine releases the result of confine.
func (c *connection) unconfine(confinement *sandbox.Confinement) {
	confinement.Release()
	c.leavePlaces()
}

func (c *connection) leavePlaces() {
	c.server.confined.Release(c.principal.QuotaKey())
	c.confined.Release(quota.Everybody)
}

// rawAnswer is the encoded answer of a helper.
type rawAnswer json.RawMessage

// AppendJSON implements protocol.Appender.
func (a rawAnswer) AppendJSON(b []byte) []byte { return append(b, a...) }
