package connect

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"execserver/internal/cli/connect/relay"
	"execserver/internal/stream"
)

// TestPace counts the seconds before each attempt to connect.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pace
		wait := func() time.Duration {
			began := time.Now()
			if err := p.wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		for _, want := range []time.Duration{0, 1, 2, 4, 8, 16, 30, 30, 30} {
			if got := wait(); got != want*time.Second {
				t.Errorf("a pause of %s, want %d s", got, want)
			}
			p.failed()
		}
		p.ended(14 * time.Second) // the link broke too soon to show anything
		if got := wait(); got != 30*time.Second {
			t.Errorf("after a short link, a pause of %s", got)
		}
		time.Sleep(time.Minute) // has passed meanwhile
		if got := wait(); got != 0 {
			t.Errorf("long after the last attempt, a pause of %s", got)
		}
		p.failed()
		p.ended(15 * time.Second)
		if got := wait(); got != 0 {
			t.Errorf("after a link that lasted, a pause of %s", got)
		}
		p.failed()
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("the user has gone")
		cancel(cause)
		if err := p.wait(ctx); err != cause {
			t.Errorf("the end of the context: %v", err)
		}
	})
}

// TestWordsAgain looks at the command line of ssh for later links.
func TestWordsAgain(t *testing.T) {
	c := connecting{isSSH: true, words: append([]string{}, sshCommand([]string{"-o", "BatchMode=no", "box"})...)}
	for attempt, own := range []bool{true, false, true} {
		words := strings.Join(c.wordsAgain(attempt), " ")
		if !strings.HasPrefix(words, "-o BatchMode=yes ") || !strings.HasSuffix(words, " box") || strings.Contains(words, "ControlPath=none") != own {
			t.Errorf("attempt %d: %s", attempt, words)
		}
	}
	c = connecting{words: []string{"docker", "exec"}}
	if words := c.wordsAgain(0); len(words) != 1 || words[0] != "exec" {
		t.Errorf("docker: %q", words)
	}
}

// TestAnswers draws the conclusion from each answer of a relay.
func TestAnswers(t *testing.T) {
	l := &lasting{c: &connecting{name: "ssh box"}}
	if err := l.answered("exec-server relay: ready \n"); err != nil {
		t.Error(err)
	}
	if err := l.answered("exec-server relay: failed no room\n"); err == nil || !strings.Contains(err.Error(), "no room") || l.failure() != nil {
		t.Errorf("failed: %v, %v", err, l.failure())
	}
	if err := l.answered("Welcome!\n"); err == nil || !strings.Contains(err.Error(), "Welcome!") {
		t.Errorf("noise: %v", err)
	}
	err := l.answered("exec-server relay: gone \n")
	if !errors.Is(err, relay.ErrGone) || !errors.Is(err, stream.Unknown) || l.failure() == nil {
		t.Errorf("gone: %v, %v", err, l.failure())
	}
}

// TestLastLine keeps what ssh says last.
func TestLastLine(t *testing.T) {
	var w lastLine
	for _, text := range []string{"debug\nssh: connect ", "to host box\r\n", "\n"} {
		_, _ = w.Write([]byte(text))
	}
	if got := w.String(); got != "ssh: connect to host box" {
		t.Errorf("it is %q", got)
	}
}
