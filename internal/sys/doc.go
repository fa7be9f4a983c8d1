// Package sys makes the system calls that can fail. Its functions are those of
// packages unix, syscall and os, each behind a point where a test can make it
// fail (package fault). Ordinary builds have no points.
package sys
