package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"execserver/fleet/natstransport"
)

// registerRequest is a machine's request at exec.register.NAME to create, renew or remove its
// entry. Only gateways access the bucket; a machine with access could reach every subject
// through the replies of JetStream.
type registerRequest struct {
	Member   Member `json:"member"`
	Revision uint64 `json:"revision,omitempty"` // of the entry to renew; 0 if the machine does not have the name
	Replaces string `json:"replaces,omitempty"` // the instance that has ended on this host
	Leave    bool   `json:"leave,omitempty"`    // whatever its revision is
}

// registerAnswer is the answer, with the current entry.
type registerAnswer struct {
	Revision uint64  `json:"revision,omitempty"` // of the entry
	Owner    *Member `json:"owner,omitempty"`    // the machine that has the name instead
	Twin     bool    `json:"twin,omitempty"`     // which is the same instance, resumed from a snapshot
	Silent   int     `json:"silent,omitempty"`   // seconds since its last heartbeat
	Error    string  `json:"error,omitempty"`    // a temporary failure
	Invalid  string  `json:"invalid,omitempty"`  // the reason if the entry is not valid
}

// The service of gateways, as the tools of NATS show it.
const (
	serviceName    = "exec-gateway"
	serviceVersion = "1.0.0"
)

// maxRegistrations bounds the registrations in progress of an account at one gateway.
const maxRegistrations = 256

// registerPause is the least time between two requests of one machine at one gateway.
const registerPause = 20 * time.Millisecond

// serveRegistrations serves the registrations of machines until the returned function is
// called. All gateways of an account share the work.
func (r *Registry) serveRegistrations(ctx context.Context) (stop func(), err error) {
	service, err := micro.AddService(r.nc, micro.Config{
		Name: serviceName, Version: serviceVersion, Description: "registers the machines of a fleet",
	})
	if err != nil {
		return nil, err
	}
	err = service.AddEndpoint("register", micro.HandlerFunc(func(request micro.Request) {
		name := strings.TrimPrefix(request.Subject(), registerSubject)
		// A machine could name any subject for the answer. Its own are those of its inbox.
		if !natstransport.ValidName(name) || !strings.HasPrefix(request.Reply(), InboxPrefix(name)+".") {
			return
		}
		// The handler must be quick: NATS drops requests of all machines that wait too long.
		begins, tell := r.begin(name)
		if tell {
			_ = request.RespondJSON(registerAnswer{Error: errTooMany}) // the machine asks again
		}
		if !begins {
			return
		}
		go func() { // which begin has added to work
			defer r.work.Done()
			answer := r.answer(ctx, name, request.Data())
			r.end(name)
			_ = request.RespondJSON(answer)
		}()
	}), micro.WithEndpointSubject(registerSubject+"*"))
	stop = func() { _ = service.Stop() } // fails only if the connection to NATS is gone
	if err != nil {
		stop()
	}
	return stop, err
}

// errTooMany answers a request that is not handled.
const errTooMany = "too many machines register, or this one does too often; try again"

// begin reports whether to handle a request of a machine, and then adds one to work. A machine
// may have one request at a time, and must pause after it. tell is set for the first refused
// request, which is answered.
func (r *Registry) begin(name string) (begins, tell bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch refused, busy := r.registering[name]; {
	case r.closed:
		return false, false
	case busy:
		r.registering[name] = true
		return false, !refused
	case r.registrations >= maxRegistrations:
		return false, true
	}
	r.registering[name] = false
	r.registrations++
	r.work.Add(1)
	return true, false
}

func (r *Registry) end(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.registrations--
	time.AfterFunc(registerPause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.registering, name)
	})
}

// answer handles a request.
func (r *Registry) answer(ctx context.Context, name string, text []byte) registerAnswer {
	var request registerRequest
	if len(text) > maxEntry {
		return registerAnswer{Invalid: fmt.Sprintf("it has %d bytes, the limit is %d", len(text), maxEntry)}
	}
	if err := json.Unmarshal(text, &request); err != nil {
		return registerAnswer{Invalid: "the request is not understood"}
	}
	if err := request.Member.check(); err != nil {
		return registerAnswer{Invalid: err.Error()}
	}
	if request.Member.Name != name {
		return registerAnswer{Invalid: "its name is another one"}
	}
	open, err := r.opened()
	if err != nil {
		return registerAnswer{Error: "the gateway does not have the list of machines yet"}
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	answer, err := r.register(ctx, open.members, &request)
	if err != nil {
		return registerAnswer{Error: err.Error()}
	}
	return answer
}

// register creates, renews or removes a lease. Updates are conditional on the revision that
// the gateway has seen.
func (r *Registry) register(ctx context.Context, kv jetstream.KeyValue, request *registerRequest) (registerAnswer, error) {
	name := request.Member.Name
	if request.Leave {
		return registerAnswer{}, leave(ctx, kv, &request.Member)
	}
	owner, revision := r.renewed(request)
	if owner == nil {
		var err error
		if owner, revision, err = find(ctx, kv, name); err != nil {
			return registerAnswer{}, err
		}
	}
	silent, fresh := r.silence(name, revision)
	claim := request.Member
	claim.Held = request.Revision != 0
	claim.Pending = fresh && (owner == nil || owner.Pending)
	same := owner != nil && owner.Instance == claim.Instance
	// A machine that was resumed twice from one snapshot exists twice with the same instance.
	// Each copy knows the revisions that it has made, or the request if the answer was lost.
	twin := same && revision != request.Revision && owner.Renewal != claim.Renewal
	switch {
	case owner == nil || same && !twin || !same && r.yields(owner, &claim, request.Replaces, silent):
	default:
		// Without the instance, which would allow impersonating that machine.
		known := &Member{Name: name, Host: owner.Host, Joined: owner.Joined, Load: Load{Sessions: owner.Load.Sessions, Draining: owner.Load.Draining}}
		return registerAnswer{Owner: known, Revision: revision, Twin: twin, Silent: int(silent / time.Second)}, nil
	}
	entry, _ := json.Marshal(&claim) // cannot fail
	revision, err := write(ctx, kv, name, entry, revision)
	switch {
	case errors.Is(err, jetstream.ErrKeyExists): // also the error for another revision
		return registerAnswer{Error: errContended}, nil
	case err != nil:
		return registerAnswer{}, err
	case claim.Pending:
		return registerAnswer{Error: errFresh}, nil
	}
	return registerAnswer{Revision: revision}, nil
}

const (
	errContended = "another request has changed the entry; try again"
	// errFresh answers claims while an empty list is new: see Registry.graceUntil.
	errFresh = "the list of machines is new and empty, so every name waits for the machine that may have had it"
)

// renewed returns the lease that a request renews, if the list has it, or nil. It saves a
// request to JetStream for most heartbeats.
func (r *Registry) renewed(request *registerRequest) (owner *Member, revision uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := r.members[request.Member.Name]
	if one == nil || one.revision != request.Revision || one.Instance != request.Member.Instance {
		return nil, 0
	}
	member := one.Member
	return &member, one.revision
}

// silence returns the time since the last heartbeat of a lease, and whether the list is fresh.
// It does not compare clocks of different machines: the age of a lease counts from when this
// gateway first saw the revision.
func (r *Registry) silence(name string, revision uint64) (silent time.Duration, fresh bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.timeouts.now()
	if one := r.members[name]; one != nil && one.revision == revision {
		silent = now.Sub(one.at)
	}
	return silent, now.Before(r.graceUntil) && (r.isNew == nil || !r.isNew(name))
}

// yields reports whether a machine that has a name, or claims it, loses it to another one:
//
//   - It has no sessions, and was silent for Lifetime, or the claimant has sessions.
//   - It has sessions, and was silent for SessionsHold, or for Lifetime if the claimant is its
//     successor on the same host, where it has ended.
//   - It does not have the name yet, and the claimant has had it.
func (r *Registry) yields(owner, claimant *Member, replaces string, silent time.Duration) bool {
	switch {
	case !owner.busy() && claimant.busy():
		return true
	case silent >= r.timeouts.sessionsHold:
		return true
	case silent >= r.timeouts.lifetime && (!owner.busy() || replaces == owner.Instance):
		return true
	}
	return owner.Pending && owner.busy() == claimant.busy() && claimant.Held && !owner.Held
}

// leave removes the lease of a machine if it belongs to this instance. The machine may not
// know its last revision.
func leave(ctx context.Context, kv jetstream.KeyValue, member *Member) error {
	owner, revision, err := find(ctx, kv, member.Name)
	if err != nil || owner == nil || owner.Instance != member.Instance {
		return err
	}
	return kv.Delete(ctx, member.Name, jetstream.LastRevision(revision))
}

// find returns the machine that has a name, or nil.
func find(ctx context.Context, kv jetstream.KeyValue, name string) (owner *Member, revision uint64, err error) {
	found, err := kv.Get(ctx, name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	owner = new(Member)
	if err := json.Unmarshal(found.Value(), owner); err != nil {
		return nil, 0, fmt.Errorf("read the entry of %s: %w", name, err)
	}
	return owner, found.Revision(), nil
}

func write(ctx context.Context, kv jetstream.KeyValue, name string, entry []byte, revision uint64) (uint64, error) {
	if revision == 0 {
		return kv.Create(ctx, name, entry)
	}
	return kv.Update(ctx, name, entry, revision)
}

// attemptTimeout bounds one request to JetStream or to a machine. While a cluster has no
// leader, JetStream does not answer.
const attemptTimeout = time.Second
