package testkit

import (
	"context"
	"runtime/pprof"
	"strings"
	"testing"
)

// Shutdown shuts a server down. If that takes longer than Patience the test has
// failed, and shows what hangs.
func Shutdown(t testing.TB, server interface{ Shutdown(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		var stuck strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stuck, 1)
		t.Errorf("the server does not end: %v; it has\n%s", err, stuck.String())
	}
}
