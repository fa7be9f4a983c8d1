package term

import (
	"fmt"
	"io"
	"sync"
	"time"

	"execserver/client"
	"execserver/internal/cli"
)

// LinkMonitor tracks the state of the link to a server.
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

// Set updates the state. It is a client.Options.OnState.
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

// Get returns the current state.
func (m *LinkMonitor) Get() LinkState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// LinkNotice reports a broken link in lines, where no command uses the whole terminal.
type LinkNotice struct {
	Out      io.Writer
	Link     *LinkMonitor
	reported bool
}

// Clock returns a channel that receives when to call Look again, or nil.
func (n *LinkNotice) Clock() <-chan time.Time {
	if n == nil || n.reported {
		return nil
	}
	link := n.Link.Get()
	if !link.Down {
		return nil
	}
	return time.After(time.Until(link.since.Add(linkPatience)))
}

// Look reports changes of the link, except short breaks.
func (n *LinkNotice) Look() {
	if n == nil {
		return
	}
	now, link := time.Now(), n.Link.Get()
	switch {
	case link.Down && !n.reported && now.Sub(link.since) >= linkPatience:
		n.reported = true
		_, _ = fmt.Fprintf(n.Out, "no link to %s since %s; trying again for another %s\n",
			cli.Printable(link.server), link.since.Format(time.TimeOnly), cli.Remaining(link.until.Sub(now)))
	case !link.Down && n.reported:
		n.reported = false
		_, _ = fmt.Fprintf(n.Out, "the link to %s is back\n", cli.Printable(link.server))
	}
}
