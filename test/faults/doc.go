// Package faults makes every system call behind a point fail or be late, one at
// a time, while a client starts, feeds, signals and ends processes, and checks
// after each that the server kept its contracts: it answered every request,
// reported no wrong exit, leaked no descriptor, closed none twice, left no
// process and no goroutine, and served the next request.
//
//	make test-faults
package faults
