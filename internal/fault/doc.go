// Package fault lets tests make system calls fail or delay them.
//
// A point is a call of At before a call that can fail; package sys has most of them. In
// an ordinary build At is an empty function, which the compiler removes. In a build with
// the tag faults, a test arms a Plan that makes one of the calls fail, and the package
// keeps a ledger of the descriptors that are open.
package fault
