// Package keeper runs this program as the parent of a server. When the server is killed,
// the kernel gives everything that it started to the keeper. The keeper makes sure that
// it is killed, and ends as the server did (PROTOCOL.md, "Ownership").
//
// [Keep] starts the program again as the server. A keeper only waits while the server
// lives, and must be small.
package keeper
