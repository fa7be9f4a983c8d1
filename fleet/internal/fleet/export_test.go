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

// Waits are how long a Registry of a test waits for machines: longer than any takes, but for an
// entry without a heartbeat, and with contexts of the test for its attempts to connect with one.
type Waits struct {
	Patience time.Duration
	Lifetime time.Duration                                               // default Patience
	Hold     time.Duration                                               // default SessionsHold
	Fresh    time.Duration                                               // default none
	Now      func() time.Time                                            // default time.Now
	Attempt  func(context.Context) (context.Context, context.CancelFunc) // default Patience
}

// NewRegistryWithTimeouts is NewRegistry with other waits.
func NewRegistryWithTimeouts(nc *nats.Conn, replicas int, log *slog.Logger, opts *natstransport.Options, w Waits) (*Registry, error) {
	if w.Lifetime == 0 {
		w.Lifetime = w.Patience
	}
	if w.Attempt == nil {
		w.Attempt = func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, w.Patience)
		}
	}
	if w.Hold == 0 {
		w.Hold = max(SessionsHold, w.Lifetime)
	}
	if w.Now == nil {
		w.Now = time.Now
	}
	return newRegistry(nc, replicas, log, opts, timeouts{now: w.Now, lifetime: w.Lifetime, sessionsHold: w.Hold, fresh: w.Fresh, dial: w.Patience, attempt: w.Attempt})
}

// Revision returns that of the lease of a name, as far as the gateway knows, or 0.
func (r *Registry) Revision(name string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one := r.members[name]; one != nil {
		return one.revision
	}
	return 0
}

// Knows reports whether the gateway knows the leases.
func (r *Registry) Knows() bool { return r.knows() }

// HasName reports whether a machine has its name, as far as it knows.
func (m *Membership) HasName() bool { return !m.nameLost.Load() }

// LeaveWithin sets how long a machine waits for a gateway to remove its entry.
func (m *Membership) LeaveWithin(d time.Duration) { m.leaveTimeout = d }
