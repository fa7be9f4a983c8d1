package share_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"execserver/internal/share"
	"execserver/internal/testkit"
)

// Who has its share waits, and others do not wait for it.
func TestPlaces(t *testing.T) {
	const limit, most = 8, 6
	places := share.NewPlaces(limit)
	take := func(principal string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		defer cancel()
		if err := places.Take(ctx, principal); err != nil {
			t.Fatalf("%s: %v", principal, err)
		}
	}
	for range most {
		take("greedy")
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	var given sync.WaitGroup
	for range limit {
		given.Go(func() {
			if err := places.Take(ctx, "greedy"); !errors.Is(err, enough) {
				t.Errorf("beyond the share: %v", err)
			}
		})
	}
	take("modest")
	if refusal := places.Check("greedy"); refusal == nil || !refusal.Greedy() {
		t.Errorf("the greedy one is told %v", refusal)
	}
	cancel(enough)
	given.Wait()
	places.Give("modest")
	for range most {
		places.Give("greedy")
	}
	for range limit {
		take(share.Everybody)
	}
}

// Principals that wait take turns, however many wait for one of them, and those who wait for
// the same principal are served in the order in which they came.
func TestPlacesTakeTurns(t *testing.T) {
	places := share.NewPlaces(1)
	if err := places.Take(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	const many = 20
	served := make(chan string, 2*many)
	var given sync.WaitGroup
	wait := func(principal string, n int) {
		waits := places.Waiting()
		given.Go(func() {
			if err := places.Take(t.Context(), principal); err != nil {
				t.Error(err)
				return
			}
			served <- fmt.Sprint(principal, n)
			places.Give(principal)
		})
		for end := time.Now().Add(testkit.Patience); places.Waiting() == waits; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s does not wait", principal)
			}
		}
	}
	for i := range many {
		wait("greedy", i)
	}
	for i := range 3 {
		wait("modest", i)
	}
	places.Give("first")
	given.Wait()
	close(served)
	var got []string
	for who := range served {
		got = append(got, who)
	}
	want := []string{"greedy0", "modest0", "greedy1", "modest1", "greedy2", "modest2"}
	for i := 3; i < many; i++ {
		want = append(want, fmt.Sprint("greedy", i))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the order is %q, want %q", got, want)
	}
}

// Places come back, however those who wait for them give up.
func TestPlacesComeBack(t *testing.T) {
	const limit, waiters = 4, 200
	places := share.NewPlaces(limit)
	var wg sync.WaitGroup
	for i := range waiters {
		wg.Go(func() {
			who := fmt.Sprint(i % 3)
			ctx, cancel := context.WithCancel(t.Context())
			if i%2 == 0 {
				wg.Go(cancel)
			}
			defer cancel()
			if places.Take(ctx, who) == nil {
				places.Give(who)
			}
		})
	}
	wg.Wait()
	for range limit {
		if refusal := places.Check(share.Everybody); refusal != nil {
			t.Fatalf("not everything has come back: %v", refusal)
		}
		if err := places.Take(t.Context(), share.Everybody); err != nil {
			t.Fatal(err)
		}
	}
}
