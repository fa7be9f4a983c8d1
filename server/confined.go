package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"execserver/filesystem"
	"execserver/internal/auth"
	"execserver/internal/sandbox"
	"execserver/process"
	"execserver/protocol"
	"execserver/rpc"
)

// Bounds of the helpers in sandboxes that run at the same time, each of which is a
// process: of one connection, and of all. Where the file system does not answer,
// neither does a helper; who waits for another one's place does so for
// confinedPatience.
const (
	maxConfinedShare = 8
	maxConfined      = 256
	confinedPatience = 5 * time.Second
)

// smallAnswerBytes is more than the answer to any request about a single file
// takes, but for its content.
const smallAnswerBytes = 64 << 10

// noSandbox refuses what asks for a sandbox of a program without any.
var noSandbox = sandbox.UnavailableError{Reason: "this program has none; run the client without one " +
	"(danger-full-access) if this machine is one itself"}

// confineStart adds the sandbox of process/start, or that of the client's credentials,
// to what is to be started.
func (s *Server) confineStart(spec *process.Spec, p protocol.Start, g *auth.Grant) error {
	engine := s.opts.Sandbox
	required := engine != nil && engine.Mode() == sandbox.ModeRequire
	var policy *protocol.Sandbox
	if p.Sandbox != nil {
		var err error
		if policy, err = protocol.DecodeSandbox(p.Sandbox, false); err != nil {
			return err
		}
	}
	if by := g.Starts(); by != nil {
		policy = forced(by, policy)
	}
	switch {
	case required && (policy == nil || policy.FullWrite()):
		return protocol.Errorf(protocol.CodeInvalidParams, "this server starts nothing that may write everywhere (--sandbox=require)")
	case policy == nil:
		return nil
	case policy.Enforces() && engine == nil:
		return protocol.Errorf(protocol.CodeInvalidParams, "%s", &noSandbox)
	case policy.Network && !policy.FullWrite():
		if err := s.checkNetwork(); err != nil {
			return protocol.Errorf(protocol.CodeInvalidParams, "%s", err)
		}
	}
	context := sandbox.Context{Cwd: spec.Dir, TmpDir: spec.Env["TMPDIR"], MakeIn: makeIn(g)}
	spec.Sandbox = func() (*sandbox.Confinement, error) {
		if !policy.Enforces() {
			return nil, nil
		}
		return engine.Confine(policy, context)
	}
	return nil
}

// What methods about files do, as far as it matters to a sandbox.
var (
	looking = map[string]bool{
		protocol.MethodGetMetadata: true, protocol.MethodReadFile: true, protocol.MethodReadDirectory: true,
		protocol.MethodWalk: true, protocol.MethodCanonicalize: true, protocol.MethodWatch: true,
		protocol.MethodDiscoverRoots: true,
	}
	spelling = map[string]bool{protocol.MethodJoin: true, protocol.MethodParent: true}
	listing  = map[string]bool{protocol.MethodReadDirectory: true, protocol.MethodWalk: true}
)

// confinement is the sandbox that a method about files needs; nil means that the
// policy keeps nothing from it.
func confinement(method string, policy *protocol.Sandbox) *protocol.Sandbox {
	switch {
	case policy == nil, policy.FullWrite(), spelling[method]:
		return nil
	case looking[method] && method != protocol.MethodReadFile && policy.FullRead():
		return nil
	}
	confined := *policy
	confined.Network = false
	return &confined
}

// serveConfined has a helper in a sandbox serve a request about files.
func (c *connection) serveConfined(r *rpc.Request, policy *protocol.Sandbox, paths []string) {
	call := func(limit int) (any, error) {
		return c.callConfined(r.Context(), policy, r.Method, r.Params, limit)
	}
	switch {
	case r.Method == protocol.MethodWatch:
		r.Fail(protocol.Errorf(protocol.CodeInvalidRequest,
			"%s cannot be confined; ask for it without a sandbox, or with one that lets everything be read", r.Method))
	case r.Method == protocol.MethodOpen:
		p, err := protocol.DecodeOpen(r.Params)
		if err != nil {
			r.Fail(err)
			return
		}
		c.openWith(r, p, paths[0], func(ctx context.Context, path string, mode filesystem.HandleMode) (*os.File, error) {
			if mode == filesystem.HandleReplace {
				return c.openConfined(ctx, policy, path, openReplace)
			}
			return c.openToRead(ctx, policy, path, openRead)
		})
	case r.Method == protocol.MethodReadFile:
		p, err := protocol.DecodeFile(r.Params)
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
	case listing[r.Method]: // how long the answer is, nobody knows before
		c.list(r, func(fits func(int) bool) (any, error) {
			if !fits(protocol.MaxAnswerBytes) {
				return nil, nil
			}
			return call(protocol.MaxAnswerBytes)
		})
	case looking[r.Method]:
		c.look(r, func() (any, error) {
			if err := c.reserve(r, smallAnswerBytes); err != nil {
				return nil, err
			}
			return call(smallAnswerBytes)
		})
	default:
		c.changes.submit(paths, func(x *change) {
			r.Go(func() {
				defer c.changes.done(x)
				defer c.server.inPlace.begin()() // as far as one can tell from outside
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

// openToRead opens a file: in a sandbox, unless the policy lets everything be
// read. Even then what is in /proc would be this server's own, such as its memory
// and its environment, and some files are hidden in every sandbox.
func (c *connection) openToRead(ctx context.Context, policy *protocol.Sandbox, path, mode string) (*os.File, error) {
	if !policy.FullRead() {
		return c.openConfined(ctx, policy, path, mode)
	}
	open := func() (*os.File, error) { return filesystem.OpenFile(ctx, path, filesystem.HandleRead) }
	if mode == openReadNoFollow {
		open = func() (*os.File, error) { return filesystem.OpenNoFollow(path) }
	}
	f, err := open()
	engine := c.server.opts.Sandbox
	if err != nil || !filesystem.InProc(f) && (engine == nil || !engine.Hides(f)) {
		return f, err
	}
	_ = f.Close()
	return c.openConfined(ctx, policy, path, mode)
}

// discoverConfined looks at a capability root in the sandbox that it asks for;
// nil means that there is none that matters.
func (c *connection) discoverConfined(ctx context.Context, root protocol.DiscoverRoot) *protocol.DiscoveredRoot {
	policy, err := c.filePolicy(protocol.MethodDiscoverRoots, root.Sandbox)
	if policy == nil && err == nil {
		return nil
	}
	var found protocol.DiscoveredRoots
	if err == nil {
		var params json.RawMessage
		var answer rawAnswer
		root.Sandbox = nil
		if params, err = json.Marshal(protocol.DiscoverRoots{Roots: []protocol.DiscoverRoot{root}}); err == nil {
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

// confine prepares the sandbox of a request about files, when there is a place
// for its helper: among those of the connection, and then among all.
func (c *connection) confine(ctx context.Context, policy *protocol.Sandbox) (*sandbox.Confinement, error) {
	s := c.server
	if s.opts.Sandbox == nil {
		return nil, protocol.Errorf(protocol.CodeInternal, "%s", &noSandbox)
	}
	if err := takePlace(ctx, c.confined, "this connection"); err != nil {
		return nil, err
	}
	if err := takePlace(ctx, s.confined, "the server"); err != nil {
		<-c.confined
		return nil, err
	}
	confinement, err := s.opts.Sandbox.Confine(policy, sandbox.Context{TmpDir: os.Getenv("TMPDIR")})
	if err != nil {
		<-s.confined
		<-c.confined
		return nil, protocol.Errorf(protocol.CodeInternal, "%s", err)
	}
	return confinement, nil
}

// takePlace waits for one of the places of whose helpers, in order of arrival.
func takePlace(ctx context.Context, places chan struct{}, whose string) error {
	patience := time.NewTimer(confinedPatience)
	defer patience.Stop()
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-patience.C:
		return protocol.Errorf(protocol.CodeInternal, "%s has its limit of %d file operations in sandboxes under way, "+
			"and none has ended for %v; perhaps a file system does not answer", whose, cap(places), confinedPatience)
	}
}

// unconfine gives back what confine has made.
func (c *connection) unconfine(confinement *sandbox.Confinement) {
	confinement.Release()
	<-c.server.confined
	<-c.confined
}

// rawAnswer is the answer of a helper, encoded already.
type rawAnswer json.RawMessage

// AppendJSON implements protocol.Appender.
func (a rawAnswer) AppendJSON(b []byte) []byte { return append(b, a...) }
