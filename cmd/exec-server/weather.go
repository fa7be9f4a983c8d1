package main

import (
	"net/url"
	"sync"
	"time"

	"execserver/client"
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

// label names a machine for people, in a few words and without secrets.
func label(w *where) string {
	switch u, err := url.Parse(w.url); {
	case w.on != "":
		return w.on
	case w.url == "" || err != nil:
		return "the server"
	case u.Host != "":
		return u.Host
	default:
		return u.Path
	}
}
