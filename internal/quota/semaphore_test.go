package quota_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"execserver/internal/quota"
)

// A principal that has its quota waits, and others do not wait for it.
func TestSemaphore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, each = 8, 4
		s := quota.NewSemaphore(limit)
		acquire := func(principal string) {
			t.Helper()
			if err := s.Acquire(t.Context(), principal); err != nil {
				t.Fatalf("%s: %v", principal, err)
			}
		}
		for range each {
			acquire("greedy")
		}
		enough := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		var waiters sync.WaitGroup
		for range limit {
			waiters.Go(func() {
				if err := s.Acquire(ctx, "greedy"); !errors.Is(err, enough) {
					t.Errorf("beyond the quota: %v", err)
				}
			})
		}
		synctest.Wait()
		acquire("modest")
		if err := s.Check("greedy"); err == nil || !err.Principal {
			t.Errorf("the error of the greedy one is %v", err)
		}
		cancel(enough)
		waiters.Wait()
		s.Release("modest")
		for range each {
			s.Release("greedy")
		}
		for range limit {
			acquire(quota.None)
		}
	})
}

// Waiters get slots in the order of arrival.
func TestSemaphoreOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quota.NewSemaphore(1)
		if err := s.Acquire(t.Context(), "first"); err != nil {
			t.Fatal(err)
		}
		var served, want []string
		var waiters sync.WaitGroup
		for i := range 20 {
			who := fmt.Sprint("principal", i%3)
			want = append(want, fmt.Sprint(who, " ", i))
			waiters.Go(func() {
				if err := s.Acquire(t.Context(), who); err != nil {
					t.Error(err)
					return
				}
				served = append(served, fmt.Sprint(who, " ", i))
				s.Release(who)
			})
			synctest.Wait()
		}
		if n := s.Waiting(); n != len(want) {
			t.Errorf("%d wait", n)
		}
		s.Release("first")
		waiters.Wait()
		if !slices.Equal(served, want) {
			t.Errorf("the order is %q, want %q", served, want)
		}
	})
}

// Slots are returned, however waiters give up.
func TestSlotsComeBack(t *testing.T) {
	const limit, waiters = 4, 200
	s := quota.NewSemaphore(limit)
	var wg sync.WaitGroup
	for i := range waiters {
		wg.Go(func() {
			who := fmt.Sprint(i % 3)
			ctx, cancel := context.WithCancel(t.Context())
			if i%2 == 0 {
				wg.Go(cancel)
			}
			defer cancel()
			if s.Acquire(ctx, who) == nil {
				s.Release(who)
			}
		})
	}
	wg.Wait()
	for range limit {
		if err := s.Check(quota.None); err != nil {
			t.Fatalf("not everything has come back: %v", err)
		}
		if err := s.Acquire(t.Context(), quota.None); err != nil {
			t.Fatal(err)
		}
	}
}
