// Package supervisor runs this program as the parent of a server. When the server is killed,
// the kernel gives everything that it started to the supervisor. The supervisor makes sure that
// all of it is killed, and then ends as the server did, with the same exit status or by the
// same signal (docs/operations.md, "What a process owns").
//
// [Run] starts the program again as the server. A supervisor only waits while the server
// lives, and must be small.
package supervisor
