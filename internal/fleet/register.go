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

	"execserver/transport/natstransport"
)

// registerRequest is what a machine asks at exec.register.NAME: to make its entry, or to
// renew or remove it. Only gateways touch the bucket; a machine that could would reach every
// subject through the answers of JetStream.
type registerRequest struct {
	Member   Member `json:"member"`
	Revision uint64 `json:"revision,omitempty"` // of the entry to replace; 0 for a new one
	Leave    bool   `json:"leave,omitempty"`
}

// registerAnswer says what is in the bucket now.
type registerAnswer struct {
	Revision uint64  `json:"revision,omitempty"` // of the entry
	Owner    *Member `json:"owner,omitempty"`    // who has the name instead
	Error    string  `json:"error,omitempty"`    // why nothing is known; trying again may help
	Invalid  string  `json:"invalid,omitempty"`  // why the entry is not taken
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

// serveRegistrations lets machines register, until the returned function is called. All
// gateways of an account share the work.
func (r *Roster) serveRegistrations(ctx context.Context) (stop func(), err error) {
	service, err := micro.AddService(r.nc, micro.Config{
		Name: serviceName, Version: serviceVersion, Description: "registers the machines of a fleet",
	})
	if err != nil {
		return nil, err
	}
	slots := make(chan struct{}, maxRegistrations)
	err = service.AddEndpoint("register", micro.HandlerFunc(func(request micro.Request) {
		name := strings.TrimPrefix(request.Subject(), registerSubject)
		// A machine could name any subject for the answer. Its own are those of its inbox.
		if !natstransport.ValidName(name) || !strings.HasPrefix(request.Reply(), InboxPrefix(name)+".") || !r.begin(name) {
			return
		}
		slots <- struct{}{}
		go func() { // which begin has added to work
			defer r.work.Done()
			answer := r.answer(ctx, name, request.Data())
			time.AfterFunc(registerPause, func() { r.end(name) })
			<-slots
			_ = request.RespondJSON(answer) // the machine asks again
		}()
	}), micro.WithEndpointSubject(registerSubject+"*"))
	stop = func() { _ = service.Stop() } // fails only if the connection to NATS is gone
	if err != nil {
		stop()
	}
	return stop, err
}

// begin reports whether no other request of a machine is in progress, or was a moment ago,
// and adds one to work then. The others get no answer.
func (r *Roster) begin(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.registering[name] {
		return false
	}
	r.registering[name] = true
	r.work.Add(1)
	return true
}

func (r *Roster) end(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.registering, name)
}

// answer does what a machine asks.
func (r *Roster) answer(ctx context.Context, name string, text []byte) registerAnswer {
	var request registerRequest
	if err := json.Unmarshal(text, &request); err != nil {
		return registerAnswer{Invalid: "the request is not understood"}
	}
	if err := request.Member.check(); err != nil {
		return registerAnswer{Invalid: err.Error()}
	}
	if request.Member.Name != name {
		return registerAnswer{Invalid: "its name is another one"}
	}
	kv := r.bucketOfMembers()
	if kv == nil {
		return registerAnswer{Error: "the gateway does not have the list of machines yet"}
	}
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	answer, err := register(ctx, kv, &request)
	if err != nil {
		return registerAnswer{Error: err.Error()}
	}
	return answer
}

// register makes, renews or removes an entry. The revision guards it: an entry changes only
// for the machine that has seen the last change.
func register(ctx context.Context, kv jetstream.KeyValue, request *registerRequest) (answer registerAnswer, err error) {
	name := request.Member.Name
	if request.Leave {
		return registerAnswer{}, kv.Delete(ctx, name, jetstream.LastRevision(request.Revision))
	}
	entry, _ := json.Marshal(request.Member) // cannot fail
	answer.Revision, err = write(ctx, kv, name, entry, request.Revision)
	if !errors.Is(err, jetstream.ErrKeyExists) { // also the error for another revision
		return answer, err
	}
	found, err := kv.Get(ctx, name)
	if errors.Is(err, jetstream.ErrKeyNotFound) { // it went meanwhile
		answer.Revision, err = kv.Create(ctx, name, entry)
		return answer, err
	}
	if err != nil {
		return registerAnswer{}, err
	}
	owner := new(Member)
	if err := json.Unmarshal(found.Value(), owner); err != nil {
		return registerAnswer{}, fmt.Errorf("read the entry of %s: %w", name, err)
	}
	if owner.Instance != request.Member.Instance {
		return registerAnswer{Owner: owner, Revision: found.Revision()}, nil
	}
	// The machine made this entry by a request whose answer did not come.
	answer.Revision, err = kv.Update(ctx, name, entry, found.Revision())
	return answer, err
}

func write(ctx context.Context, kv jetstream.KeyValue, name string, entry []byte, revision uint64) (uint64, error) {
	if revision == 0 {
		return kv.Create(ctx, name, entry)
	}
	return kv.Update(ctx, name, entry, revision)
}

// bucketOfMembers returns the bucket, or nil while it is not known.
func (r *Roster) bucketOfMembers() jetstream.KeyValue {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.buckets == nil {
		return nil
	}
	return r.buckets.members
}

// attemptTimeout bounds one request to JetStream or to a machine. While a cluster has no
// leader, JetStream does not answer.
const attemptTimeout = time.Second
