package server

import (
	"encoding/json"

	"execserver/internal/rpc"
	"execserver/protocol"
)

// methods is the table of all methods.
var methods = map[string]func(*connection, *rpc.Request){
	protocol.MethodInitialize: (*connection).initialize,

	protocol.MethodEnvironmentInfo:   method("environment info", (*connection).environmentInfo),
	protocol.MethodEnvironmentStatus: method("environment status", (*connection).environmentStatus),

	protocol.MethodEnvironmentConfigRead: method("environment config", (*connection).environmentConfigRead),
	protocol.MethodDiscoverRoots:         method("capability discovery", (*connection).discoverRoots),

	protocol.MethodStart:     method("exec", (*connection).start),
	protocol.MethodRead:      method("exec", (*connection).read),
	protocol.MethodWrite:     method("exec", (*connection).write),
	protocol.MethodSignal:    method("exec", (*connection).signal),
	protocol.MethodTerminate: method("exec", (*connection).terminate),

	protocol.MethodGetMetadata:     fileMethod((*connection).getMetadata),
	protocol.MethodReadFile:        fileMethod((*connection).readFile),
	protocol.MethodReadDirectory:   fileMethod((*connection).readDirectory),
	protocol.MethodWalk:            fileMethod((*connection).walk),
	protocol.MethodCanonicalize:    fileMethod((*connection).canonicalize),
	protocol.MethodJoin:            fileMethod((*connection).join),
	protocol.MethodParent:          fileMethod((*connection).parent),
	protocol.MethodWriteFile:       fileMethod((*connection).writeFile),
	protocol.MethodCreateDirectory: fileMethod((*connection).createDirectory),
	protocol.MethodRemove:          fileMethod((*connection).remove),
	protocol.MethodCopy:            fileMethod((*connection).copy),
	protocol.MethodRename:          fileMethod((*connection).rename),
	protocol.MethodSetMetadata:     fileMethod((*connection).setMetadata),
	protocol.MethodSymlink:         fileMethod((*connection).symlink),
	protocol.MethodReadLink:        fileMethod((*connection).readLink),

	protocol.MethodOpen:       fileMethod((*connection).open),
	protocol.MethodReadBlock:  method("filesystem", (*connection).readBlock),
	protocol.MethodWriteBlock: method("filesystem", (*connection).writeBlock),
	protocol.MethodClose:      method("filesystem", (*connection).closeHandle),

	protocol.MethodWatchMissing:   method("filesystem", (*connection).watchMissing),
	protocol.MethodWatch:          fileMethod((*connection).watch),
	protocol.MethodUnwatch:        method("filesystem", (*connection).unwatch),
	protocol.MethodCloseStdin:     method("exec", (*connection).closeStdin),
	protocol.MethodReadBackground: method("exec", (*connection).readBackground),

	protocol.MethodResize:   method("exec", (*connection).resize),
	protocol.MethodWait:     method("exec", (*connection).wait),
	protocol.MethodSnapshot: method("exec", (*connection).snapshot),
	protocol.MethodScreen:   method("exec", (*connection).screen),
	protocol.MethodList:     method("exec", (*connection).listProcesses),
	protocol.MethodUsage:    method("exec", (*connection).usage),
	protocol.MethodTakeOver: method("session", (*connection).takeOver),
	protocol.MethodKeep:     method("session", (*connection).keep),
	protocol.MethodSessions: method("session", (*connection).listSessions),

	protocol.MethodEndSession: method("session", (*connection).endSession),

	protocol.MethodRecordings:    method("recording", (*connection).listRecordings),
	protocol.MethodReadRecording: method("recording", (*connection).readRecording),

	protocol.MethodWebLink: method("page", (*connection).webLink),

	protocol.MethodHTTPRequest: method("http", (*connection).httpRequest),
	protocol.MethodTCPOpen:     method("tcp", (*connection).tcpOpen),
}

// method returns the function that serves a method. It decodes the params and then checks
// the handshake. Then it calls serve on the reader, which serve must not block.
func method[P any](family string, serve func(*connection, *rpc.Request, P)) func(*connection, *rpc.Request) {
	return func(c *connection, r *rpc.Request) {
		p, err := protocol.DecodeBulk[P](r.Params, r.Data)
		if err == nil {
			err = c.checkHandshake(family)
		}
		if err != nil {
			r.Fail(err)
			return
		}
		serve(c, r, p)
	}
}

// fileMethod is method for params that name files. serve gets their paths on this host,
// unless the request asks for a sandbox or the credentials require one: then a helper in
// the sandbox serves it.
func fileMethod[P interface {
	Files() ([]protocol.Path, json.RawMessage)
}](serve func(*connection, *rpc.Request, P, []string),
) func(*connection, *rpc.Request) {
	return method("filesystem", func(c *connection, r *rpc.Request, p P) {
		wire, wanted := p.Files()
		paths, err := osPaths(wire)
		var policy *protocol.Sandbox
		if err == nil {
			policy, err = c.filePolicy(r.Method, wanted)
		}
		switch {
		case err != nil:
			r.Fail(err)
		case policy != nil:
			c.serveConfined(r, policy, paths)
		default:
			serve(c, r, p, paths)
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
