//go:build linux

package server_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/testclient"
	"execserver/protocol"
	"execserver/server"
)

// sleeper is a client whose machine can fall asleep: its connection stays open,
// and nobody reads it or answers pings.
type sleeper struct {
	*follower
	sleep  chan struct{} // closed when it shall fall asleep
	asleep chan struct{} // closed when it has
	fall   func()        // closes asleep
	wake   chan struct{} // closed when it may end
}

func newSleeper() *sleeper {
	s := &sleeper{follower: newFollower(), sleep: make(chan struct{}), asleep: make(chan struct{}), wake: make(chan struct{})}
	s.fall = sync.OnceFunc(func() { close(s.asleep) })
	return s
}

func (s *sleeper) notify(method string, params json.RawMessage) {
	select {
	case <-s.sleep:
		s.fall()
		<-s.wake
		return
	default:
		s.follower.notify(method, params)
	}
}

// waitUnknown waits until a session has ended.
func waitUnknown(t *testing.T, url, id string) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() error {
		c, err := testclient.Dial(testContext(t), url, testclient.Options{Observe: id})
		if err == nil {
			c.Drop()
			return errors.New("the session has not ended")
		}
		switch text := err.Error(); {
		case strings.Contains(text, "unknown session id"):
			return nil
		case strings.Contains(text, "the session has ended"), errors.Is(err, net.ErrClosed):
			return err // it ended while this connection began to observe it
		}
		t.Fatal(err)
		return nil
	})
}

// A session whose client only fell silent outlives those whose connections broke,
// and its processes go on. The client finds all of their output when it is back.
func TestSleepingClient(t *testing.T) {
	t.Parallel() // it mostly waits
	var log testkit.Buffer
	url := serve(t, &server.Options{
		Log:          testLog(&log),
		PingInterval: time.Second,
		ProbeTimeout: testkit.Patience, // what is acknowledged is so because of a pong
		Session:      server.SessionOptions{RetainedBytes: 64 << 10, DetachedTTL: 300 * time.Millisecond},
	})
	asleep := newSleeper()
	defer close(asleep.wake)
	c := dial(t, url, testclient.Options{Notify: asleep.notify})
	output := new(bytes.Buffer)
	asleep.data["p"] = output
	const lines = 300
	call(t, c, protocol.MethodStart, protocol.StartParams{
		ProcessID: "p", Cwd: protocol.OSPath("/"), PipeStdin: true,
		Argv: []string{"/bin/sh", "-c", fmt.Sprintf("head -c 300000 /dev/zero; for i in $(seq %d); do echo $i; sleep .01; done", lines)},
		Env:  map[string]string{"PATH": "/usr/bin:/bin"},
	}, nil)
	testkit.WaitFor(t, testkit.Patience, func() error {
		asleep.mu.Lock()
		defer asleep.mu.Unlock()
		if output.Len() <= 300_000 {
			return fmt.Errorf("only %d bytes have come", output.Len())
		}
		return nil
	})
	close(asleep.sleep)
	<-asleep.asleep
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !strings.Contains(log.String(), "connection given up") {
			return errors.New("the server has not noticed that the client is silent")
		}
		return nil
	})

	lost := dial(t, url, testclient.Options{})
	lost.Drop()
	waitUnknown(t, url, lost.SessionID)

	awake := newFollower()
	asleep.mu.Lock()
	awake.data["p"], awake.seqs["p"] = output, asleep.seqs["p"]
	asleep.mu.Unlock()
	dial(t, url, testclient.Options{Resume: c.SessionID, Notify: awake.notify})
	awake.waitClosed(t, "p")
	var want strings.Builder
	for i := range lines {
		fmt.Fprintln(&want, i+1)
	}
	if got := output.String()[300_000:]; got != want.String() {
		t.Errorf("the process has written %q", got)
	}
}
