// Package share divides what a server has among its principals, so that no principal takes
// everything and leaves nothing to others.
//
// [Of] is the rule, the same for everything. A [Pool] counts things of one kind by it.
// Package output counts bytes by it.
package share

import (
	"fmt"
	"sync"
)

// Everybody is the principal of clients that have no share, because they are the only
// ones: the limit alone bounds them.
const Everybody = ""

// Of returns how much of a limit one principal may have while the others have some of it:
// three quarters of what they leave, and at least one. So something is left for the next
// principal.
func Of(limit, others int64) int64 {
	rest := limit - others
	return max(1, rest-rest/4)
}

// Pool counts the things of one kind that all principals have. All methods may be called
// concurrently.
type Pool struct {
	limit int

	mu  sync.Mutex
	all int // without those of a principal that Add has counted beyond its share
	of  map[string]int
}

// NewPool returns a Pool of limit things.
func NewPool(limit int) *Pool { return &Pool{limit: limit, of: make(map[string]int)} }

// Error says why a principal gets no further thing.
type Error struct {
	Limit       int // for all principals
	Own, Others int // what this principal has, and the others
	Share       int // of this principal; 0 if it has none
}

// Greedy reports whether the principal has its share, and the rest is for others. A very
// small rest cannot be shared.
func (e *Error) Greedy() bool {
	return e.Share > 0 && e.Own >= e.Share && e.Share < e.Limit-e.Others
}

// Error implements error.
func (e *Error) Error() string { return e.Of("has", "things of this kind") }

// Of returns the text of the error with the names of what the server does and of the
// things: that it "has" so many "sessions".
func (e *Error) Of(has, things string) string {
	switch {
	case e.Own+e.Others >= e.Limit:
		return fmt.Sprintf("the server %s %d %s, the limit is %d", has, e.Own+e.Others, things, e.Limit)
	case e.Others == 0:
		return fmt.Sprintf("the server %s %d %s of this principal, the limit is %d, its share of %d",
			has, e.Own, things, e.Share, e.Limit)
	}
	return fmt.Sprintf("the server %s %d %s of this principal, the limit is %d, its share of %d while others have %d",
		has, e.Own, things, e.Share, e.Limit, e.Others)
}

// Take counts one more thing of a principal, unless it may have none: then it returns why.
func (p *Pool) Take(principal string) *Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	refusal := p.checkLocked(principal)
	if refusal == nil {
		p.addLocked(principal)
	}
	return refusal
}

// Check returns what Take would return now.
func (p *Pool) Check(principal string) *Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.checkLocked(principal)
}

func (p *Pool) checkLocked(principal string) *Error {
	own := p.of[principal]
	counted := own
	if principal != Everybody {
		counted = min(own, p.most())
	}
	refusal := &Error{Limit: p.limit, Own: own, Others: p.all - counted}
	if principal != Everybody {
		refusal.Share = int(Of(int64(p.limit), int64(refusal.Others)))
	}
	if p.all >= p.limit || refusal.Greedy() {
		return refusal
	}
	return nil
}

// Add counts one more thing of a principal, whether it may have it or not. What is beyond
// the largest share takes nothing away from others.
func (p *Pool) Add(principal string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addLocked(principal)
}

func (p *Pool) addLocked(principal string) {
	if p.of[principal]++; principal == Everybody || p.of[principal] <= p.most() {
		p.all++
	}
}

// Give counts one thing of a principal less.
func (p *Pool) Give(principal string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if principal == Everybody || p.of[principal] <= p.most() {
		p.all--
	}
	if p.of[principal]--; p.of[principal] == 0 {
		delete(p.of, principal)
	}
}

// most returns the largest share of a principal.
func (p *Pool) most() int { return int(Of(int64(p.limit), 0)) }

// Count returns how many things all principals have, as far as they count.
func (p *Pool) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}
