package quota_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"execserver/internal/quota"
)

// Whatever principals take and release, each gets its quota while something is left, and no
// more, and everything is returned.
func TestQuota(t *testing.T) {
	const limit, each = 1001, 501
	for seed := range uint64(5) {
		random := rand.New(rand.NewPCG(seed, 0))
		q := quota.New(limit)
		has := make(map[string]int)
		all := 0
		for range 5000 {
			who := fmt.Sprint("p", random.IntN(4))
			if has[who] > 0 && random.IntN(3) == 0 {
				q.Release(who)
				has[who]--
				all--
				continue
			}
			err := q.Take(who)
			if granted := err == nil; granted != (has[who] < each && all < limit) {
				t.Fatalf("seed %d: %s has %d of %d: %v", seed, who, has[who], all, err)
			}
			if err == nil {
				has[who]++
				all++
			}
		}
		for who, n := range has {
			for range n {
				q.Release(who)
			}
		}
		for range limit {
			if err := q.Take(quota.None); err != nil {
				t.Fatalf("seed %d: not everything has come back: %v", seed, err)
			}
		}
	}
}

// The things that a principal has beyond its quota take nothing away from others.
func TestBeyondQuota(t *testing.T) {
	const limit, each = 8, 4
	q := quota.New(limit)
	for range 3 * limit {
		q.Add("greedy")
	}
	for range limit - each {
		if err := q.Take("modest"); err != nil {
			t.Error(err)
		}
	}
	for range 3 * limit {
		q.Release("greedy")
	}
	for range each {
		if err := q.Take(quota.None); err != nil {
			t.Error(err)
		}
	}
}

// An error names the limit and how much there is: of the principal, or of all.
func TestErrors(t *testing.T) {
	q := quota.New(8)
	expect := func(principal, want string) {
		t.Helper()
		if err := q.Take(principal); err == nil || err.Of("has", "sessions") != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for range 4 {
		if err := q.Take("greedy"); err != nil {
			t.Fatal(err)
		}
	}
	expect("greedy", "the server has 4 sessions of this principal, the limit is 4")
	for range 4 {
		if err := q.Take(quota.None); err != nil {
			t.Fatal(err)
		}
	}
	expect(quota.None, "the server has 8 sessions, the limit is 8")
	expect("modest", "the server has 8 sessions, the limit is 8")
	q = quota.New(4)
	for range 4 {
		if err := q.Take("only"); err != nil {
			t.Fatal(err)
		}
	}
	expect("only", "the server has 4 sessions, the limit is 4")
}
