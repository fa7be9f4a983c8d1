package server_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"execserver/client"
	"execserver/internal/screen"
	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
)

func dialEnvironment(t *testing.T, url string) *client.Environment {
	t.Helper()
	env, err := client.Dial(testContext(t), url, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Close() })
	return env
}

// onTerminal starts a shell script on a terminal.
func onTerminal(t *testing.T, env *client.Environment, size client.Size, out io.Writer, script string) *client.Cmd {
	t.Helper()
	c := env.Command(testContext(t), "/bin/sh", "-c", script)
	c.TTY, c.Stdout = &size, out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return c
}

// awaitScreen waits until the screen of a process is as wanted.
func awaitScreen(t *testing.T, p *client.Process, wanted func(*client.Screen) bool) (s *client.Screen) {
	t.Helper()
	testkit.WaitFor(t, testkit.Patience, func() (err error) {
		if s, err = p.Screen(testContext(t), &client.ScreenOptions{Styles: true, Drawing: true}); err != nil {
			return err
		}
		if !wanted(s) {
			return fmt.Errorf("the screen is %q, size %d, %d, %d bytes omitted", s.Text, s.Rows, s.Cols, s.OmittedBytes)
		}
		return nil
	})
	return s
}

// A screen says what it lacks of a long output. A kept screen goes on from where it was.
func TestScreenOfEvictedOutput(t *testing.T) {
	url := serve(t, &server.Options{Session: server.SessionOptions{RetainedBytes: 64 << 10}})
	env := dialEnvironment(t, url)
	var out testkit.Buffer
	c := onTerminal(t, env, client.Size{Rows: 5, Cols: 40}, &out,
		`printf '\033[7m'; seq 200000; printf '\033[mend '; read x; printf more; read x`)
	// A screen that is looked at meanwhile is kept, and may lack nothing of a slow output.
	testkit.WaitFor(t, testkit.Patience, func() error {
		if !strings.HasSuffix(out.String(), "end ") {
			return errors.New("the output has not ended")
		}
		return nil
	})
	s := awaitScreen(t, c.Process, func(s *client.Screen) bool { return strings.HasSuffix(s.Text[4], "end") })
	if !slices.Equal(s.Text, []string{"199997", "199998", "199999", "200000", "end"}) || s.OmittedBytes == 0 {
		t.Errorf("%q, %d bytes omitted", s.Text, s.OmittedBytes)
	}
	if s.Styled[0] != "\x1b[0;7m199997\x1b[0m" { // which only the beginning tells
		t.Errorf("%q", s.Styled[0])
	}
	if err := c.Process.Write(testContext(t), []byte("\n")); err != nil {
		t.Fatal(err)
	}
	later := awaitScreen(t, c.Process, func(s *client.Screen) bool { return s.Text[4] == "more" })
	if later.OmittedBytes != s.OmittedBytes {
		t.Errorf("%d bytes omitted, and then %d", s.OmittedBytes, later.OmittedBytes)
	}
	again := screen.New(5, 40)
	again.Write(later.Drawing)
	if got := again.Rows(); !slices.Equal(got, later.Text) {
		t.Errorf("drawn: %q, wanted %q", got, later.Text)
	}
}

// The size of a screen is that of the terminal, whoever sets it, and each part of the output
// is interpreted with the size that it was written for.
func TestScreenFollowsTheSize(t *testing.T) {
	env := dialEnvironment(t, serve(t, &server.Options{}))
	c := onTerminal(t, env, client.Size{Rows: 3, Cols: 10}, io.Discard,
		`trap 'printf "\033[2;1Habcdefghijklmnop"' WINCH; stty -echo; printf 'abcdefghijklm'; while :; do read x && break; done; stty rows 4 cols 30; sleep 100`)
	awaitScreen(t, c.Process, func(s *client.Screen) bool { return s.Text[1] == "klm" })
	if err := c.Process.Resize(testContext(t), client.Size{Rows: 2, Cols: 20}); err != nil {
		t.Fatal(err)
	}
	awaitScreen(t, c.Process, func(s *client.Screen) bool {
		return slices.Equal(s.Text, []string{"abcdefghij", "abcdefghijklmnop"}) && s.Rows == 2 && s.Cols == 20
	})
	// A second look without the kept screen: the sizes are remembered with their places.
	if err := c.Process.Write(testContext(t), []byte("\n")); err != nil {
		t.Fatal(err)
	}
	awaitScreen(t, c.Process, func(s *client.Screen) bool { return s.Rows == 4 && s.Cols == 30 })
	if err := c.Process.Terminate(testContext(t), 0); err != nil {
		t.Fatal(err)
	}
}

// Many look at a process that floods its terminal: each gets a whole screen, and the process
// goes on.
func TestScreensOfFlood(t *testing.T) {
	url := serve(t, &server.Options{})
	env := dialEnvironment(t, url)
	c := onTerminal(t, env, client.Size{Rows: 10, Cols: 40}, io.Discard, `while :; do seq 100000 100999; done`)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			watcher, err := client.Dial(testContext(t), url, &client.Options{Observe: env.Session()})
			if err != nil {
				t.Error(err)
				return
			}
			defer watcher.Close()
			p, err := watcher.Attach(testContext(t), c.ID)
			if err != nil {
				t.Error(err)
				return
			}
			last := uint64(0)
			for range 10 {
				s, err := p.Screen(testContext(t), nil)
				if err != nil || len(s.Text) != 10 || s.NextSeq < last {
					t.Errorf("%+v, %v", s, err)
					return
				}
				last = s.NextSeq
			}
		})
	}
	wg.Wait()
	if err := c.Process.Terminate(testContext(t), 0); err != nil {
		t.Error(err)
	}
	if s, err := c.Process.Screen(testContext(t), nil); err != nil && !errors.Is(err, protocol.ErrInvalidRequest) || err == nil && len(s.Text) != 10 {
		t.Errorf("%+v, %v", s, err)
	}
}
