// Package quota bounds the share of each principal of a server in a limited resource, so
// that no principal can take all of it.
//
// [Of] is the rule that all share: a [Quota] refuses by it, a [Semaphore] queues, and package output
// applies it to bytes.
package quota

import (
	"fmt"
	"sync"
)

// None is the principal of clients that have no quota, because they are the only
// ones: the limit alone bounds them.
const None = ""

// Of returns how much of a limit of the whole server one principal may have: half, rounded up. A
// limit of less than eight is not divided: the halves would be of little use.
func Of(limit int64) int64 {
	if limit < 8 {
		return limit
	}
	return limit - limit/2
}

// Quota counts the things of one kind that all principals have. All methods may be called
// concurrently.
type Quota struct {
	limit, each int

	mu  sync.Mutex
	all int // without those of a principal that Add has counted beyond its quota
	of  map[string]int
}

// New returns a Quota of limit things.
func New(limit int) *Quota {
	return &Quota{limit: limit, each: int(Of(int64(limit))), of: make(map[string]int)}
}

// Error reports why a principal gets no further item.
type Error struct {
	Limit     int  // for the principal, or for all
	Has       int  // what the principal holds, or all principals
	Principal bool // the limit is that of each principal
}

// Error implements error.
func (e *Error) Error() string { return e.Of("has", "things of this kind") }

// Of returns the text of the error, given the names of what the server does and of the
// items: that it "has" so many "sessions".
func (e *Error) Of(has, things string) string {
	if e.Principal {
		things += " of this principal"
	}
	return fmt.Sprintf("the server %s %d %s, the limit is %d", has, e.Has, things, e.Limit)
}

// Take counts one more item of a principal. If the principal may not have it, Take counts
// nothing and returns the reason.
func (q *Quota) Take(principal string) *Error { return q.TakeN(principal, 1) }

// TakeN counts n more things of a principal, unless it may not have so many: then it counts
// none, and returns why.
func (q *Quota) TakeN(principal string, n int) *Error {
	q.mu.Lock()
	defer q.mu.Unlock()
	err := q.checkLocked(principal, n)
	if err == nil {
		q.addLocked(principal, n)
	}
	return err
}

// Check returns what Take would return now.
func (q *Quota) Check(principal string) *Error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.checkLocked(principal, 1)
}

func (q *Quota) checkLocked(principal string, n int) *Error {
	if own := q.of[principal]; principal != None && own+n > q.each && q.each < q.limit {
		return &Error{Limit: q.each, Has: own, Principal: true}
	}
	if q.all+n > q.limit {
		return &Error{Limit: q.limit, Has: q.all}
	}
	return nil
}

// Add counts one more item of a principal, even if the principal has its quota already. What
// exceeds the quota does not count toward the limit of all.
func (q *Quota) Add(principal string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addLocked(principal, 1)
}

// addLocked counts n more things of a principal, or less if n is negative.
func (q *Quota) addLocked(principal string, n int) {
	before := q.of[principal]
	after := before + n
	if principal == None {
		q.all += n
	} else {
		q.all += min(after, q.each) - min(before, q.each)
	}
	if after == 0 {
		delete(q.of, principal)
	} else {
		q.of[principal] = after
	}
}

// Release subtracts one item from the count of a principal.
func (q *Quota) Release(principal string) { q.ReleaseN(principal, 1) }

// ReleaseN counts n things of a principal less.
func (q *Quota) ReleaseN(principal string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addLocked(principal, -n)
}

// Count returns how many things all principals have, as far as they count.
func (q *Quota) Count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.all
}
