// Package keeper is this program as the parent of a server: when the server is
// killed, whatever it had started becomes the keeper's, which sees that it is
// killed and ends as the server did (PROTOCOL.md, "Ownership").
//
// The program becomes one by [Start], which executes it anew. A keeper does
// nothing as long as the server lives and must be small. So it is this package's
// init function, which never returns, and the package imports little: Go
// initializes packages in the order of their dependencies and then of their
// paths, so that most of the program is never initialized in a keeper.
package keeper
