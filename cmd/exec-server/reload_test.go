//go:build unix

package main

import (
	"context"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"time"
)

// asked tells how it is refreshed.
type asked chan string

func (a asked) Refresh() (changed bool, err error) { return a.by("at once") }

func (a asked) Look() (changed bool, err error) { return a.by("by a look") }

func (a asked) by(how string) (changed bool, err error) {
	select {
	case a <- how:
	default:
	}
	return false, nil
}

// TestReload has files refreshed at once on SIGHUP, and by looks otherwise.
func TestReload(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	ended, hangups, files := make(chan struct{}), make(chan os.Signal, 1), make(asked, 1)
	go func() {
		defer close(ended)
		reload(ctx, slog.New(slog.DiscardHandler), nil, nil, hangups, map[string]refresher{"credentials": files})
	}()
	defer func() {
		stop()
		<-ended
	}()
	until := func(want string) {
		t.Helper()
		for deadline := time.After(patience); ; {
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
