package client

import (
	"fmt"
	"slices"
	"sync"
)

// Calls remembers which command belongs to which tool call of an agent. The zero
// value is ready to use; methods may be called concurrently.
type Calls struct {
	// Max bounds how many commands are remembered; 0 means 64. When there are
	// as many, the oldest of those that have ended is forgotten.
	Max int

	mu    sync.Mutex
	calls []call // in the order in which they were added
}

type call struct {
	id      string
	command *Cmd
}

const defaultMaxCalls = 64

// Add remembers a command that was started. It fails when the id is in use, and
// when there are as many commands as there may be and all of them run.
func (c *Calls) Add(id string, command *Cmd) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.index(id) >= 0 {
		return fmt.Errorf("tool call %q has a command already", id)
	}
	limit := c.Max
	if limit <= 0 {
		limit = defaultMaxCalls
	}
	if len(c.calls) >= limit {
		ended := slices.IndexFunc(c.calls, func(k call) bool { return k.command.ended() })
		if ended < 0 {
			return fmt.Errorf("tool call %q: %d commands run already; end one of them", id, limit)
		}
		c.calls = slices.Delete(c.calls, ended, ended+1)
	}
	c.calls = append(c.calls, call{id, command})
	return nil
}

// Get returns the command of a tool call.
func (c *Calls) Get(id string) (*Cmd, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.index(id); i >= 0 {
		return c.calls[i].command, true
	}
	return nil, false
}

// Remove forgets the command of a tool call, and returns it.
func (c *Calls) Remove(id string) (*Cmd, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.index(id)
	if i < 0 {
		return nil, false
	}
	command := c.calls[i].command
	c.calls = slices.Delete(c.calls, i, i+1)
	return command, true
}

// Running returns the ids of the tool calls whose commands run.
func (c *Calls) Running() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []string
	for _, k := range c.calls {
		if !k.command.ended() {
			ids = append(ids, k.id)
		}
	}
	return ids
}

func (c *Calls) index(id string) int {
	return slices.IndexFunc(c.calls, func(k call) bool { return k.id == id })
}

// ended reports whether the process has exited, or failed.
func (c *Cmd) ended() bool {
	select {
	case <-c.p.exitedCh:
		return true
	default:
		return false
	}
}
