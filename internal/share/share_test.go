package share_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"execserver/internal/share"
)

// Whatever principals take, one more gets something until many share everything, and
// everything is given back.
func TestPool(t *testing.T) {
	const limit = 1000
	for seed := range uint64(5) {
		random := rand.New(rand.NewPCG(seed, 0))
		pool := share.NewPool(limit)
		has := make(map[string]int)
		all := 0
		for range 5000 {
			who := fmt.Sprint("p", random.IntN(4))
			if has[who] > 0 && random.IntN(3) == 0 {
				pool.Give(who)
				has[who]--
				all--
				continue
			}
			refusal := pool.Take(who)
			most := int(share.Of(limit, int64(all-has[who])))
			if granted := refusal == nil; granted != (has[who] < most && all < limit) {
				t.Fatalf("seed %d: %s has %d of %d, its share is %d: %v", seed, who, has[who], all, most, refusal)
			}
			if refusal == nil {
				has[who]++
				all++
			}
		}
		if err := pool.Check("newcomer"); err != nil {
			t.Fatalf("seed %d: nothing is left for a newcomer: %v", seed, err)
		}
		for who, n := range has {
			for range n {
				pool.Give(who)
			}
		}
		for range limit {
			if err := pool.Take(share.Everybody); err != nil {
				t.Fatalf("seed %d: not everything was given back: %v", seed, err)
			}
		}
	}
}

// What a principal has beyond its share takes nothing away from others.
func TestPoolBeyondShares(t *testing.T) {
	const limit, most = 8, 6
	pool := share.NewPool(limit)
	for range 3 * limit {
		pool.Add("greedy")
	}
	for range limit - most {
		if err := pool.Take("modest"); err != nil {
			t.Error(err)
		}
	}
	for range 3 * limit {
		pool.Give("greedy")
	}
	for range most {
		if err := pool.Take(share.Everybody); err != nil {
			t.Error(err)
		}
	}
}

// Without shares the limit alone counts.
func TestPoolOfEverybody(t *testing.T) {
	pool := share.NewPool(8)
	for range 8 {
		if err := pool.Take(share.Everybody); err != nil {
			t.Fatal(err)
		}
	}
	const want = "the server has 8 sessions, the limit is 8"
	if err := pool.Take(share.Everybody); err == nil || err.Of("has", "sessions") != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
