//go:build unix

package serve

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
type asked struct{ atOnce, byALook chan struct{} }

func (a asked) Refresh() (changed bool, err error) { return a.by(a.atOnce) }

func (a asked) Poll() (changed bool, err error) { return a.by(a.byALook) }

func (a asked) by(how chan<- struct{}) (changed bool, err error) {
	select {
	case how <- struct{}{}:
	default: // the test has yet to receive the one before
	}
	return false, nil
}

// TestReload checks that SIGHUP refreshes the files at once, and the regular checks do
// otherwise.
func TestReload(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	ended, hangups, files := make(chan struct{}), make(chan os.Signal, 1), asked{make(chan struct{}, 1), make(chan struct{}, 1)}
	go func() {
		defer close(ended)
		Reload(ctx, slog.New(slog.DiscardHandler), nil, nil, hangups, "", map[string]Refresher{"credentials": files})
	}()
	defer func() {
		stop()
		<-ended
	}()
	await := func(what string, how <-chan struct{}) {
		t.Helper()
		select {
		case <-how:
		case <-time.After(testkit.Patience):
			t.Fatalf("the files are not refreshed %s", what)
		}
	}
	await("by a look", files.byALook)
	hangups <- syscall.SIGHUP
	await("at once", files.atOnce)
}
