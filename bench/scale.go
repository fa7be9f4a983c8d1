//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
)

// scaleCases returns cases that measure how cost grows. After a failure a server skips
// the larger sizes.
func scaleCases() []benchCase {
	var list []benchCase
	for _, n := range []int{1, 10, 100, 1000, 4000} {
		list = append(list, benchCase{"processes: " + strconv.Itoa(n), func(ctx context.Context, s *server, m *sample) error {
			return amongProcesses(ctx, s, m, n)
		}, nil})
	}
	for _, n := range []int{1, 10, 100, 1000, 4000} {
		list = append(list, benchCase{"connections: " + strconv.Itoa(n), func(ctx context.Context, s *server, m *sample) error {
			return amongConnections(ctx, s, m, n)
		}, nil})
	}
	for size := 1 << 10; size <= 1<<30; size <<= 4 {
		list = append(list, benchCase{"output: " + strconv.Itoa(size), func(ctx context.Context, s *server, m *sample) error {
			return transfer(ctx, s, m, false, int64(size), zeros(size)...)
		}, nil})
	}
	return list
}

// amongProcesses measures a start while n processes live, in as many sessions as that
// needs.
func amongProcesses(ctx context.Context, s *server, m *sample, n int) error {
	c, err := s.connect(ctx)
	if err != nil {
		return err
	}
	if _, err := c.sleepers(ctx, n); err != nil {
		return fmt.Errorf("start %d processes: %w", n, err)
	}
	return latencies(ctx, m, "start to closed", 100, 0, func() error { return c.runTrue(ctx) })
}

func amongConnections(ctx context.Context, s *server, m *sample, n int) error {
	for range n {
		if _, err := s.connect(ctx); err != nil {
			return fmt.Errorf("open %d connections: %w", n, err)
		}
	}
	c := s.open[0]
	return latencies(ctx, m, "start to closed", 100, 0, func() error { return c.runTrue(ctx) })
}
