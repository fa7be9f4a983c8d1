package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"execserver/filesystem"
	"execserver/internal/sandbox"
	"execserver/process"
	"execserver/protocol"
	"execserver/rpc"
)

// maxConfined bounds the helpers in sandboxes that run at the same time for all
// connections; each is a process.
const maxConfined = 32

// noSandbox refuses what asks for a sandbox of a program without any.
var noSandbox = sandbox.UnavailableError{Reason: "this program has none; run the client without one " +
	"(danger-full-access) if this machine is one itself"}

// confineStart adds the sandbox of process/start to what is to be started.
func (s *Server) confineStart(spec *process.Spec, p protocol.Start) error {
	engine := s.opts.Sandbox
	required := engine != nil && engine.Mode() == sandbox.ModeRequire
	var policy *protocol.Sandbox
	if p.Sandbox != nil {
		var err error
		if policy, err = protocol.DecodeSandbox(p.Sandbox, false); err != nil {
			return err
		}
	}
	switch {
	case required && (policy == nil || policy.Files.FullWrite()):
		return protocol.Errorf(protocol.CodeInvalidParams, "this server starts nothing that may write everywhere (--sandbox=require)")
	case policy == nil:
		return nil
	case policy.Enforces() && engine == nil:
		return protocol.Errorf(protocol.CodeInvalidParams, "%s", &noSandbox)
	}
	context := sandbox.Context{Cwd: spec.Dir, TmpDir: spec.Env["TMPDIR"]}
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

// confinement decodes the sandbox of a request about files; nil means that it
// keeps nothing from the method.
func confinement(method string, raw json.RawMessage) (*protocol.Sandbox, error) {
	policy, err := protocol.DecodeSandbox(raw, true)
	switch {
	case err != nil:
		return nil, err
	case policy.Files.FullWrite(), spelling[method], looking[method] && policy.Files.FullRead():
		return nil, nil
	}
	policy.Network = false
	return policy, nil
}

// serveConfined has a helper in a sandbox serve a request about files.
func (c *connection) serveConfined(r *rpc.Request, policy *protocol.Sandbox, paths []string) {
	call := func() (any, error) {
		answer, err := c.server.callConfined(r.Context(), policy, r.Method, r.Params)
		if err != nil {
			return nil, err
		}
		return answer, c.reserve(r, len(answer))
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
		if p.Mode == protocol.OpenRead && policy.Files.FullRead() {
			c.openWith(r, p, paths[0], filesystem.OpenFile)
			return
		}
		c.openWith(r, p, paths[0], func(ctx context.Context, path string, mode filesystem.HandleMode) (*os.File, error) {
			return c.server.openConfined(ctx, policy, path, mode)
		})
	case listing[r.Method]:
		c.list(r, call)
	case looking[r.Method]:
		c.look(r, call)
	default:
		c.changes.submit(paths, func(x *change) {
			r.Go(func() {
				defer c.changes.done(x)
				defer c.server.inPlace.begin()() // as far as one can tell from outside
				c.operate(r, call)
			})
		})
	}
}

// discoverConfined looks at a capability root in the sandbox that it asks for;
// nil means that there is none that matters.
func (c *connection) discoverConfined(ctx context.Context, root protocol.DiscoverRoot) *protocol.DiscoveredRoot {
	if root.Sandbox == nil || c.server.opts.inside {
		return nil
	}
	policy, err := confinement(protocol.MethodDiscoverRoots, root.Sandbox)
	if policy == nil && err == nil {
		return nil
	}
	var found protocol.DiscoveredRoots
	if err == nil {
		var params json.RawMessage
		var answer rawAnswer
		root.Sandbox = nil
		if params, err = json.Marshal(protocol.DiscoverRoots{Roots: []protocol.DiscoverRoot{root}}); err == nil {
			answer, err = c.server.callConfined(ctx, policy, protocol.MethodDiscoverRoots, params)
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

// confine prepares the sandbox of a request about files.
func (s *Server) confine(ctx context.Context, policy *protocol.Sandbox) (*sandbox.Confinement, error) {
	if s.opts.Sandbox == nil {
		return nil, protocol.Errorf(protocol.CodeInternal, "%s", &noSandbox)
	}
	select {
	case s.confined <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	confinement, err := s.opts.Sandbox.Confine(policy, sandbox.Context{TmpDir: os.Getenv("TMPDIR")})
	if err != nil {
		<-s.confined
		return nil, protocol.Errorf(protocol.CodeInternal, "%s", err)
	}
	return confinement, nil
}

// release gives back what confine has made.
func (s *Server) release(confinement *sandbox.Confinement) {
	confinement.Release()
	<-s.confined
}

// rawAnswer is the answer of a helper, encoded already.
type rawAnswer json.RawMessage

// AppendJSON implements protocol.Appender.
func (a rawAnswer) AppendJSON(b []byte) []byte { return append(b, a...) }
