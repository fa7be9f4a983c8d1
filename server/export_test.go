package server

import (
	"maps"
	"slices"
	"time"

	"execserver/internal/quota"
)

// LimitFileOperations sets how many file operations may be under way.
func LimitFileOperations(s *Server, n int) { s.quotas.operations = quota.New(n) }

// LimitForwards sets how many forwarded connections there may be.
func LimitForwards(s *Server, n int) { s.quotas.forwards = quota.New(n) }

// LimitRequests sets how many network connections there may be for HTTP requests.
func LimitRequests(s *Server, n int) { s.quotas.requests = quota.New(n) }

// LimitMessageMemory sets how many bytes large messages may take, and returns a function for how
// many they take.
func LimitMessageMemory(s *Server, n int) (taken func() int) {
	s.quotas.memory = quota.New(n)
	return s.quotas.memory.Count
}

// LimitListings sets how many JSON values a listing may have.
func LimitListings(s *Server, n int) { s.listingValues = n }

// DelayRefusals sets how long the answer to wrong credentials is delayed.
func DelayRefusals(s *Server, d time.Duration) { s.refusals.delay = d }

// FileError is what a peer is told of an error of the file system.
var FileError = fileError

// Methods are all that a client can call, in order.
func Methods() []string { return slices.Sorted(maps.Keys(methods)) }

// Decided reports whether it is decided who may call a method.
func Decided(method string) bool { return needs[method] != 0 }

// LimitConfined sets how many file operations in sandboxes may be under way.
func LimitConfined(s *Server, n int) { s.confined = quota.NewSemaphore(n) }

// LimitHandles sets how many file handles the principals with quotas may have.
func LimitHandles(s *Server, n int) { s.quotas.handles = quota.New(n) }

// HandshakeDeadlines lets a test expire handshakes, in place of the clock. It returns a channel of
// functions, one for each deadline that begins.
func HandshakeDeadlines(s *Server) <-chan func() {
	deadlines := make(chan func(), 16)
	s.pending.after = func(_ time.Duration, expire func()) func() bool {
		deadlines <- expire
		return func() bool { return true }
	}
	return deadlines
}

// LimitPending sets how many connections may be in their handshake.
func LimitPending(s *Server, n int) { s.pending.limit, s.pending.perSource = n, n/2 }
