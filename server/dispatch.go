package server

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"execserver/internal/rpc"
	"execserver/protocol"
)

// methods is the table of all methods.
var methods = map[string]func(*connection, *rpc.Request){
	protocol.MethodInitialize: (*connection).initialize,

	protocol.MethodEnvironmentInfo:       method("environment info", environment, (*environmentHandler).info),
	protocol.MethodEnvironmentStatus:     method("environment status", environment, (*environmentHandler).status),
	protocol.MethodEnvironmentConfigRead: method("environment config", environment, (*environmentHandler).configRead),

	protocol.MethodStart:          method("exec", processes, (*processHandler).start),
	protocol.MethodRead:           method("exec", processes, (*processHandler).read),
	protocol.MethodReadBackground: method("exec", processes, (*processHandler).readBackground),
	protocol.MethodWrite:          method("exec", processes, (*processHandler).write),
	protocol.MethodCloseStdin:     method("exec", processes, (*processHandler).closeStdin),
	protocol.MethodResize:         method("exec", processes, (*processHandler).resize),
	protocol.MethodSignal:         method("exec", processes, (*processHandler).signal),
	protocol.MethodTerminate:      method("exec", processes, (*processHandler).terminate),
	protocol.MethodWait:           method("exec", processes, (*processHandler).wait),
	protocol.MethodSnapshot:       method("exec", processes, (*processHandler).snapshot),
	protocol.MethodScreen:         method("exec", processes, (*processHandler).screen),
	protocol.MethodList:           method("exec", processes, (*processHandler).list),
	protocol.MethodUsage:          method("exec", processes, (*processHandler).usage),

	protocol.MethodGetMetadata:     pathMethod(files, (*fileHandler).getMetadata),
	protocol.MethodReadFile:        pathMethod(files, (*fileHandler).readFile),
	protocol.MethodReadDirectory:   pathMethod(files, (*fileHandler).readDirectory),
	protocol.MethodWalk:            pathMethod(files, (*fileHandler).walk),
	protocol.MethodCanonicalize:    pathMethod(files, (*fileHandler).canonicalize),
	protocol.MethodJoin:            pathMethod(files, (*fileHandler).join),
	protocol.MethodParent:          pathMethod(files, (*fileHandler).parent),
	protocol.MethodReadLink:        pathMethod(files, (*fileHandler).readLink),
	protocol.MethodWriteFile:       pathMethod(files, (*fileHandler).writeFile),
	protocol.MethodCreateDirectory: pathMethod(files, (*fileHandler).createDirectory),
	protocol.MethodRemove:          pathMethod(files, (*fileHandler).remove),
	protocol.MethodCopy:            pathMethod(files, (*fileHandler).copy),
	protocol.MethodRename:          pathMethod(files, (*fileHandler).rename),
	protocol.MethodSetMetadata:     pathMethod(files, (*fileHandler).setMetadata),
	protocol.MethodSymlink:         pathMethod(files, (*fileHandler).symlink),
	protocol.MethodDiscoverRoots:   method("capability discovery", files, (*fileHandler).discoverRoots),

	protocol.MethodOpen:         pathMethod(handles, (*handleHandler).open),
	protocol.MethodReadBlock:    method("filesystem", handles, (*handleHandler).readBlock),
	protocol.MethodWriteBlock:   method("filesystem", handles, (*handleHandler).writeBlock),
	protocol.MethodClose:        method("filesystem", handles, (*handleHandler).closeHandle),
	protocol.MethodWatch:        pathMethod(watches, (*watchHandler).watch),
	protocol.MethodUnwatch:      method("filesystem", watches, (*watchHandler).unwatch),
	protocol.MethodWatchMissing: method("filesystem", watches, (*watchHandler).watchMissing),

	protocol.MethodTakeOver:   method("session", sessions, (*sessionHandler).takeOver),
	protocol.MethodKeep:       method("session", sessions, (*sessionHandler).keep),
	protocol.MethodSessions:   method("session", sessions, (*sessionHandler).list),
	protocol.MethodEndSession: method("session", sessions, (*sessionHandler).end),
	protocol.MethodWebLink:    method("page", sessions, (*sessionHandler).webLink),

	protocol.MethodRecordings:    method("recording", recordings, (*recordingHandler).list),
	protocol.MethodReadRecording: method("recording", recordings, (*recordingHandler).read),

	protocol.MethodHTTPRequest: method("http", requests, (*httpHandler).request),
	protocol.MethodTCPOpen:     method("tcp", forwards, (*tcpHandler).open),
}

// The handler of each family of methods.
func environment(c *connection) *environmentHandler { return c.environment }
func processes(c *connection) *processHandler       { return c.processes }
func files(c *connection) *fileHandler              { return c.files }
func handles(c *connection) *handleHandler          { return c.files.handles }
func watches(c *connection) *watchHandler           { return c.files.watches }
func sessions(c *connection) *sessionHandler        { return c.sessions }
func recordings(c *connection) *recordingHandler    { return c.recordings }
func requests(c *connection) *httpHandler           { return c.http }
func forwards(c *connection) *tcpHandler            { return c.tcp }

// method returns the function that serves a method. It decodes the params, checks the
// handshake, and calls serve on the reader's goroutine; serve must not block. Request has checked
// the client's permission before: the order is permission, params, handshake.
func method[H, P any](family string, handler func(*connection) H, serve func(H, *rpc.Request, P)) func(*connection, *rpc.Request) {
	return func(c *connection, r *rpc.Request) {
		p, err := protocol.DecodeBulk[P](r.Params, r.Data)
		if err == nil {
			err = c.checkHandshake(family)
		}
		if err != nil {
			r.Fail(err)
			return
		}
		serve(handler(c), r, p)
	}
}

// checkHandshake refuses a method that the handshake does not allow yet.
func (c *connection) checkHandshake(family string) error {
	switch c.handshake.phase {
	case phaseNew:
		return protocol.Errorf(protocol.CodeInvalidRequest, "client must call initialize before using %s methods", family)
	case phaseAnswered:
		return protocol.Errorf(protocol.CodeInvalidRequest, "client must send initialized before using %s methods", family)
	}
	if c.rpc.Context().Err() != nil {
		return protocol.Errorf(protocol.CodeInvalidRequest, "%s", context.Cause(c.rpc.Context()))
	}
	return nil
}

// pathMethod is method for params that name files. serve gets their paths on this host,
// unless the request asks for a sandbox or the credentials require one: then a helper in
// the sandbox serves the request.
func pathMethod[H any, P interface {
	Files() ([]protocol.Path, json.RawMessage)
}](handler func(*connection) H, serve func(H, *rpc.Request, P, []string),
) func(*connection, *rpc.Request) {
	self := func(c *connection) *connection { return c }
	return method("filesystem", self, func(c *connection, r *rpc.Request, p P) {
		wire, requested := p.Files()
		paths, err := osPaths(wire)
		var policy *protocol.Sandbox
		if err == nil {
			policy, err = c.filePolicy(r.Method, requested)
		}
		switch {
		case err != nil:
			r.Fail(err)
		case policy != nil:
			c.files.serveConfined(r, policy, paths)
		default:
			serve(handler(c), r, p, paths)
		}
	})
}

func osPaths(wire []protocol.Path) ([]string, error) {
	paths := make([]string, len(wire))
	for i, p := range wire {
		path, err := p.OSPath()
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalidRequest, "%s", err)
		}
		paths[i] = path
	}
	return paths, nil
}

// Request implements rpc.Handler.
func (c *connection) Request(r *rpc.Request) {
	serve, ok := methods[r.Method]
	c.server.counters.request(r.Method)
	c.logRequest(r)
	if !ok {
		r.Fail(protocol.Errorf(protocol.CodeMethodNotFound, "exec-server stub does not implement `%s` yet", r.Method))
		return
	}
	if err := c.permit(r.Method, c.handshake.phase == phaseReady); err != nil {
		c.fail(r, err)
		return
	}
	serve(c, r)
}

// Notification implements rpc.Handler.
func (c *connection) Notification(method string, params json.RawMessage, data []byte) error {
	if ours, err := c.tcp.streams.Notify(method, params, data); ours {
		return err
	}
	if data != nil {
		return fmt.Errorf("notification `%s` has no data for a binary message", method)
	}
	switch method {
	case protocol.MethodInitialized:
		return c.handshake.initialized()
	case protocol.MethodAck, protocol.MethodHTTPCancel:
		if c.handshake.phase == phaseNew {
			return fmt.Errorf("`%s` was sent before `initialize`", method)
		}
	default:
		return fmt.Errorf("unknown notification `%s`", method)
	}
	if method == protocol.MethodHTTPCancel {
		return c.http.cancelRequest(params)
	}
	return c.ack(params)
}

// ack serves the notification process/ack.
func (c *connection) ack(params json.RawMessage) error {
	if !c.handshake.capabilities.ProcessAck {
		return fmt.Errorf("`%s` was sent without asking for processAck in `initialize`", protocol.MethodAck)
	}
	p, err := protocol.DecodeParams[protocol.AckParams](params)
	if err != nil {
		return fmt.Errorf("`%s`: %w", protocol.MethodAck, err)
	}
	if c.outbox != nil {
		c.outbox.Ack(p)
	}
	return nil
}

// maxLoggedBytes bounds a text from the client in the log.
const maxLoggedBytes = 256

// logRequest logs a request when it is answered, or when its connection ends before the
// answer, if the log has the level debug. The reader calls it before it serves the request.
func (c *connection) logRequest(r *rpc.Request) {
	if !c.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	method := r.Method
	if _, known := methods[method]; !known {
		method = unknownMethod // the error names it
	}
	log := c.log.With("method", method, "id", r.ID.String())
	if c.session != nil {
		log = log.With("sessionId", c.session.ID)
	}
	if id := processOf(r); id != "" {
		log = log.With("processId", id)
	}
	if r.Trace.Parent != "" {
		log = log.With("traceparent", cut(r.Trace.Parent))
	}
	arrived := time.Now()
	r.Then(func(err error) {
		if err != nil {
			log = log.With("error", cut(err.Error()))
		}
		log.Debug("request", "duration", time.Since(arrived))
	})
}

// processOf returns the process that a request names, or "".
func processOf(r *rpc.Request) string {
	p, err := protocol.DecodeParams[struct {
		ProcessID string `json:"processId" wire:"identifier"`
	}](r.Params)
	if err != nil {
		return ""
	}
	return p.ProcessID
}

// cut returns the beginning of a text that may be long.
func cut(text string) string {
	if len(text) <= maxLoggedBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxLoggedBytes], "") + "…"
}
