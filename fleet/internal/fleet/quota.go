package fleet

import (
	"sync"

	"execserver/internal/auth"
)

// quota shares a limit of a gateway among its clients. If there are several accounts, one gets
// at most half; if there are several principals, one gets at most a quarter. Its methods may
// be called concurrently.
type quota struct {
	limit int64

	mu        sync.Mutex
	taken     int64
	of        map[string]int64 // by principal
	ofAccount map[string]int64
}

func newQuota(limit int64) *quota {
	return &quota{limit: limit, of: make(map[string]int64), ofAccount: make(map[string]int64)}
}

// take takes n and returns 0, or takes nothing and returns the limit that is reached. several
// is set if there is more than one account.
func (q *quota) take(p *auth.Principal, several bool, n int64) (limit int64) {
	account := p.Grant.InAccount()
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.taken+n > q.limit:
		return q.limit
	case several && q.ofAccount[account]+n > q.limit/2:
		return q.limit / 2
	case !p.Alone && q.of[p.Name]+n > q.limit/4:
		return q.limit / 4
	}
	q.addLocked(p, account, n)
	return 0
}

// give returns n that take took.
func (q *quota) give(p *auth.Principal, n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addLocked(p, p.Grant.InAccount(), -n)
}

// all returns how much is taken.
func (q *quota) all() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.taken
}

func (q *quota) addLocked(p *auth.Principal, account string, n int64) {
	q.taken += n
	if q.ofAccount[account] += n; q.ofAccount[account] == 0 {
		delete(q.ofAccount, account)
	}
	if q.of[p.Name] += n; q.of[p.Name] == 0 {
		delete(q.of, p.Name)
	}
}
