//go:build unix

package main

import (
	"context"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// asked reports how it is refreshed.
type asked chan string

func (a asked) Refresh() (changed bool, err error) { return a.by("at once") }

func (a asked) Poll() (changed bool, err error) { return a.by("by a look") }

func (a asked) by(how string) (changed bool, err error) {
	select {
	case a <- how:
	default:
	}
	return false, nil
}

// TestReload checks that SIGHUP refreshes the files at once, and the regular checks do
// otherwise.
func TestReload(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	ended, hangups, files := make(chan struct{}), make(chan os.Signal, 1), make(asked, 1)
	go func() {
		defer close(ended)
		reload(ctx, slog.New(slog.DiscardHandler), nil, nil, hangups, "", map[string]refresher{"credentials": files})
	}()
	defer func() {
		stop()
		<-ended
	}()
	until := func(want string) {
		t.Helper()
		for deadline := time.After(testkit.Patience); ; {
			select {
			case how := <-files:
				if how == want {
					return
				}
			case <-deadline:
				t.Fatalf("the files are not refreshed %s", want)
			}
		}
	}
	until("by a look")
	hangups <- syscall.SIGHUP
	until("at once")
}
