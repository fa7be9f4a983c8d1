package server

import (
	"maps"
	"slices"
)

// LimitFileOperations sets how many file operations may be under way.
func LimitFileOperations(s *Server, n int64) { s.maxOperations = n }

// FileError is what a peer is told of an error of the file system.
var FileError = fileError

// Methods are all that a client can call, in order.
func Methods() []string { return slices.Sorted(maps.Keys(methods)) }

// Decided reports whether it is decided who may call a method.
func Decided(method string) bool { return needs[method] != 0 }
