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

	protocol.MethodStart:     method("exec", protocol.DecodeStart, (*connection).start),
	protocol.MethodRead:      method("exec", protocol.DecodeRead, (*connection).read),
	protocol.MethodWrite:     method("exec", protocol.DecodeWrite, (*connection).write),
	protocol.MethodSignal:    method("exec", protocol.DecodeSignal, (*connection).signal),
	protocol.MethodTerminate: method("exec", protocol.DecodeTerminate, (*connection).terminate),

	protocol.MethodGetMetadata:   method("filesystem", protocol.DecodeFile, file((*connection).getMetadata)),
	protocol.MethodReadFile:      method("filesystem", protocol.DecodeFile, file((*connection).readFile)),
	protocol.MethodReadDirectory: method("filesystem", protocol.DecodeFile, file((*connection).readDirectory)),
	protocol.MethodCanonicalize:  method("filesystem", protocol.DecodeFile, file((*connection).canonicalize)),
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
