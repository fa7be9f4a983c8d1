// Package slopes runs many short commands of mixed kinds and checks that nothing grows
// with their number: descriptors, control groups, goroutines, memory, the time of a
// start.
//
//	make slopes
//	SLOPES_COMMANDS=10000 go test -v ./test/slopes
package slopes
