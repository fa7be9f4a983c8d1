package client

import (
	"encoding/json"
	"fmt"

	"execserver/protocol"
)

// initializeResult is the answer to initialize, as far as every server sends it.
type initializeResult struct {
	SessionID       string    `json:"sessionId"`
	EnvironmentInfo *wireInfo `json:"environmentInfo"`
}

// startRequest is the params of process/start, and the directory as the machine spells
// it.
type startRequest struct {
	protocol.StartParams
	dir string // Cwd, which the link sets
}

// decodeEvent decodes the notifications about processes; ok is false for all
// others.
func decodeEvent(method string, params json.RawMessage, data []byte) (id string, e Event, ok bool, err error) {
	id, e, ok, err = decodeAnyEvent(method, params, data)
	if ok && err == nil && (e.Seq == 0 || e.Seq > farSeq) {
		err = fmt.Errorf("an event has the number %d; numbers are from 1 to %d", e.Seq, uint64(farSeq))
	}
	return id, e, ok, err
}

// decodeAnyEvent is like decodeEvent, but accepts every number.
func decodeAnyEvent(method string, params json.RawMessage, data []byte) (id string, e Event, ok bool, err error) {
	switch method {
	case protocol.NotificationOutput:
		output, err := protocol.DecodeBulk[protocol.Output](params, data)
		return output.ProcessID, Event{Kind: Output, Seq: output.Seq, Stream: output.Stream, Data: output.Data}, true, err
	case protocol.NotificationExited:
		var exited protocol.Exited
		err := json.Unmarshal(params, &exited)
		return exited.ProcessID, Event{Kind: Exited, Seq: exited.Seq, Exit: &Exit{exited.ExitRecord}}, true, err
	case protocol.NotificationClosed:
		var closed protocol.Closed
		err := json.Unmarshal(params, &closed)
		return closed.ProcessID, Event{Kind: Closed, Seq: closed.Seq}, true, err
	}
	return "", Event{}, false, nil
}
