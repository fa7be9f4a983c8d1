package server

import (
	"encoding/json"

	"execserver/protocol"
	"execserver/rpc"
)

// methods is the table of everything a client can call.
var methods = map[string]func(*connection, *rpc.Request){
	protocol.MethodInitialize: (*connection).initialize,

	protocol.MethodEnvironmentInfo:   method("environment info", decodeNothing, (*connection).environmentInfo),
	protocol.MethodEnvironmentStatus: method("environment status", decodeNothing, (*connection).environmentStatus),

	protocol.MethodEnvironmentConfigRead: method("environment config", protocol.DecodeEnvironmentConfigRead, (*connection).environmentConfigRead),
	protocol.MethodDiscoverRoots:         method("capability discovery", protocol.DecodeDiscoverRoots, (*connection).discoverRoots),

	protocol.MethodStart:     method("exec", protocol.DecodeStart, (*connection).start),
	protocol.MethodRead:      method("exec", protocol.DecodeRead, (*connection).read),
	protocol.MethodWrite:     method("exec", protocol.DecodeWrite, (*connection).write),
	protocol.MethodSignal:    method("exec", protocol.DecodeSignal, (*connection).signal),
	protocol.MethodTerminate: method("exec", protocol.DecodeTerminate, (*connection).terminate),

	protocol.MethodGetMetadata:     method("filesystem", protocol.DecodeFile, (*connection).getMetadata),
	protocol.MethodReadFile:        method("filesystem", protocol.DecodeFile, (*connection).readFile),
	protocol.MethodReadDirectory:   method("filesystem", protocol.DecodeFile, (*connection).readDirectory),
	protocol.MethodWalk:            method("filesystem", protocol.DecodeWalk, (*connection).walk),
	protocol.MethodCanonicalize:    method("filesystem", protocol.DecodeFile, (*connection).canonicalize),
	protocol.MethodJoin:            method("filesystem", protocol.DecodeJoin, (*connection).join),
	protocol.MethodParent:          method("filesystem", protocol.DecodeFile, (*connection).parent),
	protocol.MethodWriteFile:       method("filesystem", protocol.DecodeWriteFile, (*connection).writeFile),
	protocol.MethodCreateDirectory: method("filesystem", protocol.DecodeCreateDirectory, (*connection).createDirectory),
	protocol.MethodRemove:          method("filesystem", protocol.DecodeRemove, (*connection).remove),
	protocol.MethodCopy:            method("filesystem", protocol.DecodeCopy, (*connection).copy),
	protocol.MethodRename:          method("filesystem", protocol.DecodeRename, (*connection).rename),

	protocol.MethodOpen:       method("filesystem", protocol.DecodeOpen, (*connection).open),
	protocol.MethodReadBlock:  method("filesystem", protocol.DecodeReadBlock, (*connection).readBlock),
	protocol.MethodWriteBlock: method("filesystem", protocol.DecodeWriteBlock, (*connection).writeBlock),
	protocol.MethodClose:      method("filesystem", protocol.DecodeClose, (*connection).closeHandle),

	protocol.MethodWatchMissing:   method("filesystem", protocol.DecodeWatchMissing, (*connection).watchMissing),
	protocol.MethodWatch:          method("filesystem", protocol.DecodeWatch, (*connection).watch),
	protocol.MethodUnwatch:        method("filesystem", protocol.DecodeUnwatch, (*connection).unwatch),
	protocol.MethodCloseStdin:     method("exec", protocol.DecodeCloseStdin, (*connection).closeStdin),
	protocol.MethodReadBackground: method("exec", protocol.DecodeRead, (*connection).readBackground),

	protocol.MethodResize:   method("exec", protocol.DecodeResize, (*connection).resize),
	protocol.MethodWait:     method("exec", protocol.DecodeWait, (*connection).wait),
	protocol.MethodSnapshot: method("exec", protocol.DecodeSnapshot, (*connection).snapshot),
	protocol.MethodList:     method("exec", decodeNothing, (*connection).listProcesses),
	protocol.MethodTakeOver: method("session", decodeNothing, (*connection).takeOver),

	protocol.MethodHTTPRequest: method("http", protocol.DecodeHTTPRequest, (*connection).httpRequest),
}

// method makes the function that serves a method: its params are decoded, the
// handshake is checked, in this order, and then serve is called by the reader,
// which it must not block.
func method[P any](family string, decode func(json.RawMessage) (P, error), serve func(*connection, *rpc.Request, P)) func(*connection, *rpc.Request) {
	return func(c *connection, r *rpc.Request) {
		p, err := decode(r.Params)
		if err == nil {
			err = c.gate(family)
		}
		if err != nil {
			r.Fail(err)
			return
		}
		serve(c, r, p)
	}
}

func decodeNothing(raw json.RawMessage) (struct{}, error) {
	return struct{}{}, protocol.DecodeNoParams(raw)
}
