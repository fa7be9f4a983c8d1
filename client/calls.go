package client

import (
	"fmt"
	"slices"
	"sync"
)

// Calls maps the ids of an agent's tool calls to commands. The zero value is ready to use. Its
// methods may be called concurrently, and do not affect the commands. Callers that share a command
// must not call its Collect concurrently.
type Calls struct {
	// Max bounds the number of commands; 0 means 64. At the bound, Add removes the oldest
	// command that has exited. Max must not change after the first Add.
	Max int

	mu    sync.Mutex
	calls []call // in the order of Add
}

type call struct {
	id      string
	command *Cmd
}

const defaultMaxCalls = 64

// Add adds a started command under the id of its tool call. It fails if the id is in use, or if Max
// commands are running.
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

// Get returns the command of a tool call, and reports whether there is one.
func (c *Calls) Get(id string) (*Cmd, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.index(id); i >= 0 {
		return c.calls[i].command, true
	}
	return nil, false
}

// Remove removes the command of a tool call and returns it, and reports whether there was one.
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

// Running returns the ids of the tool calls whose commands are running, in the order of Add.
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
