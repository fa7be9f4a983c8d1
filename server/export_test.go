package server

// LimitFileOperations sets how many file operations may be under way.
func LimitFileOperations(s *Server, n int64) { s.maxOperations = n }

// FileError is what a peer is told of an error of the file system.
var FileError = fileError
