//go:build unix

package client_test

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
)

// Whoever may observe a session finds it, with or without a session of one's own.
func TestSessions(t *testing.T) {
	t.Parallel()
	for name, serve := range listening {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := serve(t, &server.Options{Session: server.SessionOptions{MaxKeep: time.Hour}})
			owner := dialed(t, url, &client.Options{Name: "the owner"})
			if _, err := owner.Keep(background(t), client.Lease{Name: "work", For: time.Minute}); err != nil {
				t.Fatal(err)
			}
			c := startCat(t, owner)
			other := dialed(t, url, nil)
			if err := child(other, "exit", "3").Run(); err == nil {
				t.Error("exit 3, and no error")
			}
			looker := dialed(t, url, &client.Options{NoSession: true})
			if looker.Session() != "" || looker.Info().OS == "" {
				t.Errorf("session %q on %q", looker.Session(), looker.Info().OS)
			}
			for _, env := range []*client.Environment{owner, other, looker} {
				sessions, err := env.Sessions(background(t))
				if err != nil || len(sessions) != 2 {
					t.Fatalf("%+v, %v", sessions, err)
				}
				s := sessions[0]
				if s.ID != owner.Session() || s.Name != "work" || s.Client != "the owner" || !s.Own || !s.Attached || !s.Ends.IsZero() ||
					s.Keep != time.Minute || s.Processes != 1 || s.Running != 1 || time.Since(s.Created) > time.Hour {
					t.Errorf("%+v", s)
				}
				if s = sessions[1]; s.ID != other.Session() || s.Name != "" || s.Keep != 0 || s.Running != 0 {
					t.Errorf("%+v", s)
				}
				processes, err := env.AllProcesses(background(t))
				if err != nil || len(processes) != 2 || processes[0].Session != owner.Session() || processes[0].ID != c.ID ||
					processes[1].Session != other.Session() || processes[1].Exit == nil || processes[1].Exit.ExitCode != 3 {
					t.Errorf("%+v, %v", processes, err)
				}
			}
			for what, err := range map[string]error{
				"Processes": second1(looker.Processes(background(t))),
				"Attach":    second1(looker.Attach(background(t), c.ID)),
				"TakeOver":  looker.TakeOver(background(t)),
				"Run":       child(looker, "echo").Run(),
				"ReadFile":  second1(looker.FS("/").ReadFile("etc/hostname")),
			} {
				if !errors.Is(err, client.ErrNoSession) {
					t.Errorf("%s without a session: %v", what, err)
				}
			}
			if err := owner.Detach(background(t)); err != nil {
				t.Fatal(err)
			}
			_ = c.Wait()
			// It can be found by its name.
			again := dialed(t, url, &client.Options{Session: found(t, looker, "work")})
			if err := attached(t, again, c.ID).CloseStdin(background(t)); err != nil {
				t.Error(err)
			}
			if _, err := again.Keep(background(t), client.Lease{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// found returns the id of the session with a name.
func found(t *testing.T, env *client.Environment, name string) string {
	t.Helper()
	sessions, err := env.Sessions(background(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range sessions {
		if s.Name == name {
			return s.ID
		}
	}
	t.Fatalf("no session %s among %+v", name, sessions)
	return ""
}

// Processes of other sessions can be ended, and whole sessions, by a program without one, too.
func TestControlElsewhere(t *testing.T) {
	t.Parallel()
	url := serveWebSocket(t, nil)
	owner := dialed(t, url, nil)
	var commands [3]*client.Cmd
	for i := range commands {
		commands[i] = child(owner, "idle")
		if err := commands[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	session := owner.Session()
	looker := dialed(t, url, &client.Options{NoSession: true})
	observer := dialed(t, url, &client.Options{Observe: session})
	if err := observer.SignalIn(background(t), session, commands[0].ID, os.Interrupt); !errors.Is(err, client.ErrObserving) {
		t.Errorf("an observer: %v", err)
	}
	if err := looker.SignalIn(background(t), session, commands[0].ID, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := looker.TerminateIn(background(t), session, commands[1].ID, 0); err != nil {
		t.Error(err)
	}
	for i, want := range []string{"SIGTERM", "SIGKILL"} {
		if exit, ok := errors.AsType[*client.ExitError](commands[i].Wait()); !ok || exit.Signal != want {
			t.Errorf("%v, want %s", exit, want)
		}
	}
	for what, err := range map[string]error{
		"SignalIn":    looker.SignalIn(background(t), "none", "1", os.Interrupt),
		"TerminateIn": looker.TerminateIn(background(t), "none", "1", 0),
		"EndSession":  looker.EndSession(background(t), "none"),
	} {
		if !errors.Is(err, protocol.ErrInvalidRequest) {
			t.Errorf("%s of no session: %v", what, err)
		}
	}
	if err := looker.EndSession(background(t), session); err != nil {
		t.Fatal(err)
	}
	for _, env := range []*client.Environment{owner, observer} {
		testkit.Within(t, "the end of the session", func() { <-env.Done() })
		if err := env.Err(); !errors.Is(err, client.ErrUnknownSession) {
			t.Errorf("Err: %v", err)
		}
	}
	if err := commands[2].Wait(); !errors.Is(err, client.ErrUnknownSession) {
		t.Errorf("Wait: %v", err)
	}
}

// Everywhere else it is unsupported, and nothing breaks.
func TestSessionsUnsupported(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, env *client.Environment, p place) {
		if env.Info().Capabilities["sessionList"] {
			t.Skip("the server lists sessions")
		}
		for what, err := range map[string]error{
			"Sessions":     second1(env.Sessions(background(t))),
			"AllProcesses": second1(env.AllProcesses(background(t))),
			"SignalIn":     env.SignalIn(background(t), "s", "1", os.Interrupt),
			"TerminateIn":  env.TerminateIn(background(t), "s", "1", 0),
			"EndSession":   env.EndSession(background(t), "s"),
		} {
			if !errors.As(err, new(*client.UnsupportedError)) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
	t.Run("codex without a session", func(t *testing.T) {
		t.Parallel()
		url := testkit.ServeCommand(t, codexCommand(t, "ws://127.0.0.1:0"))
		if _, err := client.Dial(background(t), url, &client.Options{NoSession: true}); !errors.As(err, new(*client.UnsupportedError)) {
			t.Errorf("Dial: %v", err)
		}
	})
	t.Run("a server that does not know it", func(t *testing.T) {
		t.Parallel()
		f := newFake(t, func(c *fakeConn) {
			if m, ok := c.expect("initialize"); ok {
				c.refuse(m, protocol.CodeInvalidRequest, "unknown session id ")
				c.drain()
			}
		})
		if _, err := client.Dial(background(t), f.url, &client.Options{NoSession: true}); !errors.As(err, new(*client.UnsupportedError)) {
			t.Errorf("Dial: %v", err)
		}
	})
}
