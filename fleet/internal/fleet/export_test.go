package fleet

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"execserver/fleet/natstransport"
)

// LimitHeld bounds the memory of large messages, for tests that do not have that much.
func (g *Gateway) LimitHeld(bytes int64) { g.held = newQuota(bytes) }

// Waits are how long a Roster of a test waits for machines: longer than any takes, but for an
// entry without a heartbeat, and with contexts of the test for its attempts to connect with one.
type Waits struct {
	Patience time.Duration
	Lifetime time.Duration                                               // default Patience
	Attempt  func(context.Context) (context.Context, context.CancelFunc) // default Patience
}

// NewRosterThatWaits is NewRoster with other waits.
func NewRosterThatWaits(nc *nats.Conn, replicas int, log *slog.Logger, opts *natstransport.Options, w Waits) (*Roster, error) {
	if w.Lifetime == 0 {
		w.Lifetime = w.Patience
	}
	if w.Attempt == nil {
		w.Attempt = func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, w.Patience)
		}
	}
	return newRoster(nc, replicas, log, opts, waits{w.Lifetime, w.Patience, w.Attempt})
}

// LeaveWithin sets how long a machine waits for a gateway to remove its entry.
func (m *Membership) LeaveWithin(d time.Duration) { m.leaveTimeout = d }
