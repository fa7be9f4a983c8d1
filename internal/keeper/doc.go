// Package keeper runs this program as the parent of a server. When the server is killed,
// the kernel gives everything that it started to the keeper. The keeper makes sure that
// it is killed, and ends as the server did (PROTOCOL.md, "Ownership").
//
// [Start] turns the program into a keeper by executing it again, and [Run], at the top of
// the main function, does the keeper's work. A keeper only waits while the server lives,
// and must be small.
package keeper
