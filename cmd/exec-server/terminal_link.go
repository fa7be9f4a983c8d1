package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"execserver/client"
	"execserver/internal/cli"
)

// weather knows the state of the link to a server.
type weather struct {
	changed chan struct{} // receives when the state has changed

	mu    sync.Mutex
	state linkState
}

// linkState is the state of a link.
type linkState struct {
	server string // its name for people
	down   bool
	since  time.Time // when it broke
	until  time.Time // when the client gives up
}

func newWeather(server string) *weather {
	return &weather{changed: make(chan struct{}, 1), state: linkState{server: server}}
}

// set is for client.Options.OnState.
func (w *weather) set(s client.State) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.down = s.Kind == client.Recovering
	if w.state.down {
		w.state.since, w.state.until = s.Since, s.Until
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *weather) get() linkState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// linkNotice tells a person in lines that the link to the server is down, where no command
// has the whole terminal.
type linkNotice struct {
	out     io.Writer
	weather *weather
	told    bool
}

// clock returns a channel that tells when to look at the link again, or nil.
func (n *linkNotice) clock() <-chan time.Time {
	if n == nil || n.told {
		return nil
	}
	link := n.weather.get()
	if !link.down {
		return nil
	}
	return time.After(time.Until(link.since.Add(linkPatience)))
}

// look tells what has changed. A short break is not worth a line.
func (n *linkNotice) look() {
	if n == nil {
		return
	}
	now, link := time.Now(), n.weather.get()
	switch {
	case link.down && !n.told && now.Sub(link.since) >= linkPatience:
		n.told = true
		_, _ = fmt.Fprintf(n.out, "no link to %s since %s; trying again for another %s\n",
			cli.Printable(link.server), link.since.Format(time.TimeOnly), cli.Remaining(link.until.Sub(now)))
	case !link.down && n.told:
		n.told = false
		_, _ = fmt.Fprintf(n.out, "the link to %s is back\n", cli.Printable(link.server))
	}
}
