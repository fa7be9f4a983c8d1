package testclient

import (
	"execserver/internal/rpc"
	"execserver/internal/testkit/transcript"
	"execserver/protocol"
	"execserver/transport"
)

// parse parses a message. It makes JSON of a binary one, so that nobody else need know of
// them.
func parse(message []byte) (protocol.Message, error) {
	if rpc.IsCompressed(message) {
		var err error
		if message, err = rpc.Decompress(nil, message, transport.DefaultMaxMessageBytes); err != nil {
			return protocol.Message{}, err
		}
	}
	if !protocol.IsBinary(message) {
		return protocol.ParseMessage(message)
	}
	m, err := protocol.ParseBinary(message)
	switch {
	case err != nil:
	case m.Kind == protocol.Response:
		m.Result = protocol.WithData(m.Result, "chunk", m.Data) // of fs/readBlock
	default:
		m.Params = protocol.WithData(m.Params, "chunk", m.Data)
	}
	return m, err
}

// encode encodes a request, as a binary message if it has data and binary is set.
func encode(id protocol.ID, method string, params any, binary bool) ([]byte, transcript.Frame, error) {
	head, data, ok := protocol.Split(params)
	if !ok || !binary {
		text, err := protocol.AppendRequest(nil, id, method, params)
		return text, transcript.Whole, err
	}
	text, err := protocol.AppendRequest(nil, id, method, head)
	return protocol.AppendBinary(nil, text, data), transcript.Binary, err
}
