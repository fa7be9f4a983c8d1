// Package fault lets tests make system calls fail or be late.
//
// A point is a call of At in front of a call that can fail; package sys has
// most of them. Ordinary builds have no points: there At is an empty function,
// which the compiler removes. In a build with the tag faults, a test arms a Plan
// that makes one of the calls fail, and the package keeps a ledger of the
// descriptors that were opened and not closed.
package fault
