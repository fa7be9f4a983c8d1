package testclient

import (
	"encoding/json"
	"sync"

	"execserver/internal/testkit"
	"execserver/protocol"
)

// Processes keeps the events of processes. Pass its Notify to New or Dial. The zero value
// is ready to use.
type Processes struct {
	mu   sync.Mutex
	told map[string]*Told
}

// Told holds the events of one process.
type Told struct {
	Output testkit.Buffer
	Exited chan protocol.ExitRecord // gets process/exited
	Closed chan struct{}            // closed by process/closed
}

// Of returns the events of a process. Call it before you start the process: Notify drops
// the events of processes for which Of was never called.
func (p *Processes) Of(id string) *Told {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.told == nil {
		p.told = make(map[string]*Told)
	}
	if p.told[id] == nil {
		p.told[id] = &Told{Exited: make(chan protocol.ExitRecord, 1), Closed: make(chan struct{})}
	}
	return p.told[id]
}

// Notify adds an event. It ignores other notifications.
func (p *Processes) Notify(method string, params json.RawMessage) {
	e, err := decodeEvent(method, params)
	if err != nil {
		return // it is about something else
	}
	p.mu.Lock()
	told := p.told[e.ProcessID]
	p.mu.Unlock()
	if told == nil {
		return
	}
	switch method {
	case protocol.NotificationOutput:
		_, _ = told.Output.Write(e.Data)
	case protocol.NotificationExited:
		told.Exited <- e.ExitRecord
	case protocol.NotificationClosed:
		close(told.Closed)
	}
}

// event holds the params of any event of a process.
type event struct {
	ProcessID string
	protocol.Chunk
	protocol.ExitRecord
}

func decodeEvent(method string, params json.RawMessage) (e event, err error) {
	if method == protocol.NotificationOutput {
		output, err := protocol.DecodeParams[protocol.Output](params)
		return event{ProcessID: output.ProcessID, Chunk: output.Chunk}, err
	}
	err = json.Unmarshal(params, &e)
	return e, err
}
