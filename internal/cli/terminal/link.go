package terminal

import (
	"fmt"
	"io"
	"sync"
	"time"

	"execserver/client"
	"execserver/internal/cli"
)

// LinkMonitor knows the state of the link to a server.
type LinkMonitor struct {
	Changed chan struct{} // receives when the state has changed

	mu    sync.Mutex
	state LinkState
}

// LinkState is the state of a link.
type LinkState struct {
	server string // its name for people
	Down   bool
	since  time.Time // when it broke
	until  time.Time // when the client gives up
}

// NewLinkMonitor returns the monitor of a link that is up. server is its name for people.
func NewLinkMonitor(server string) *LinkMonitor {
	return &LinkMonitor{Changed: make(chan struct{}, 1), state: LinkState{server: server}}
}

// Set is for client.Options.OnState.
func (m *LinkMonitor) Set(s client.State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.Down = s.Kind == client.Recovering
	if m.state.Down {
		m.state.since, m.state.until = s.Since, s.Until
	}
	select {
	case m.Changed <- struct{}{}:
	default:
	}
}

// Get returns the state now.
func (m *LinkMonitor) Get() LinkState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// LinkNotice reports a broken link to the server in lines, where no command has the whole
// terminal.
type LinkNotice struct {
	Out  io.Writer
	Link *LinkMonitor
	told bool
}

// Clock returns a channel that receives when to look at the link again, or nil.
func (n *LinkNotice) Clock() <-chan time.Time {
	if n == nil || n.told {
		return nil
	}
	link := n.Link.Get()
	if !link.Down {
		return nil
	}
	return time.After(time.Until(link.since.Add(linkPatience)))
}

// Look reports what has changed. A short break is not worth a line.
func (n *LinkNotice) Look() {
	if n == nil {
		return
	}
	now, link := time.Now(), n.Link.Get()
	switch {
	case link.Down && !n.told && now.Sub(link.since) >= linkPatience:
		n.told = true
		_, _ = fmt.Fprintf(n.Out, "no link to %s since %s; trying again for another %s\n",
			cli.Printable(link.server), link.since.Format(time.TimeOnly), cli.Remaining(link.until.Sub(now)))
	case !link.Down && n.told:
		n.told = false
		_, _ = fmt.Fprintf(n.Out, "the link to %s is back\n", cli.Printable(link.server))
	}
}
