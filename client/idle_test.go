//go:build unix

package client_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/server"
)

// A link that breaks while nothing runs harms nobody, although a server takes the
// end of a unix socket's stream for a farewell and ends a session that holds
// nothing.
func TestLostLinkOfAnIdleSession(t *testing.T) {
	t.Parallel()
	var log testkit.Buffer
	p := newProxy(t, serveUnix(t, &server.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}))
	env, err := client.Dial(background(t), p.url, nil)
	env = opened(t, env, err)
	// Run returns with the exit of the process; the end of its output comes with its
	// last event.
	if _, err := child(env, "exit", "0").Output(); err != nil {
		t.Fatal(err)
	}
	// The last event was acknowledged before this is asked for.
	if _, err := env.FS("/").Stat("."); err != nil {
		t.Fatal(err)
	}
	p.setRefuse(true)
	p.cut()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !strings.Contains(log.String(), "session ended") {
			return errors.New("the session has not ended")
		}
		// A process that is started before the client knows of the loss may have been
		// lost with the link.
		if p.refusedCount() == 0 {
			return errors.New("the client has not tried to connect again")
		}
		return nil
	})
	p.setRefuse(false)
	if err := child(env, "exit", "0").Run(); err != nil {
		t.Error(err)
	}
}
