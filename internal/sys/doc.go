// Package sys makes the system calls that can fail. Its functions are those of packages
// unix, syscall and os. In a build with the tag faults, each has a point at which a test
// can make it fail (package fault).
package sys
