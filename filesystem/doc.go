// Package filesystem carries out file operations for someone who is not there:
// a request may name a FIFO, a device, a million entries, a file that is being
// replaced, and it must still end soon, in bounded memory, with an error that
// says what happened.
//
// It knows nothing of the protocol. Paths are absolute host paths, their bytes
// taken as they are; results are plain values. [Classify] turns any error of
// this package into the kind and the text that a peer is told.
//
// Start with [GetMetadata], [Open], [ReadDirectory] and [WriteFile]; [Handles]
// holds the open files of one connection, [Walk] lists trees, [MissingWatch]
// and [Watcher] report changes.
//
// Every function may be called concurrently. A context bounds the operation as
// far as the system lets it: between blocks, entries and files, not inside a
// single system call on a dead network mount.
package filesystem
