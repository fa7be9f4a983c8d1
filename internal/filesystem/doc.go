// Package filesystem carries out file operations for a remote client. A request may name
// a FIFO, a device, a directory of a million entries, or a file that another program is
// replacing. The operation must still end soon, use bounded memory, and return an error
// that says what happened.
//
// The package knows nothing of the protocol. Paths are absolute host paths, and their
// bytes are used unchanged. Results are plain values. [Classify] turns any error of this
// package into the kind and the text for a peer.
//
// Start with [GetMetadata], [Open], [ReadDirectory] and [WriteFile]. [Handles] holds the
// open files of one connection, [Walk] lists trees, and [MissingWatch] and [Watcher]
// report changes.
//
// Every function may be called concurrently. A context bounds the operation as far as the
// system allows: between blocks, entries and files, but not inside a single system call,
// such as one on a dead network mount.
package filesystem
