package server

import (
	"maps"
	"slices"

	"execserver/internal/share"
)

// LimitFileOperations sets how many file operations may be under way.
func LimitFileOperations(s *Server, n int) { s.pools.operations = share.NewPool(n) }

// LimitForwards sets how many forwarded connections there may be.
func LimitForwards(s *Server, n int) { s.pools.forwards = share.NewPool(n) }

// FileError is what a peer is told of an error of the file system.
var FileError = fileError

// Methods are all that a client can call, in order.
func Methods() []string { return slices.Sorted(maps.Keys(methods)) }

// Decided reports whether it is decided who may call a method.
func Decided(method string) bool { return needs[method] != 0 }

// LimitConfined sets how many file operations in sandboxes may be under way.
func LimitConfined(s *Server, n int) { s.confined = share.NewPlaces(n) }

// LimitHandles sets how many file handles the principals with shares may have.
func LimitHandles(s *Server, n int) { s.pools.handles = share.NewPool(n) }
