// Package protocol is the exec-server protocol as data: the envelope, the names of the
// methods and notifications, their parameters and results, and the error codes. It does
// no I/O and starts no goroutine. It follows PROTOCOL.md, at the root of the repository,
// section by section.
//
// Start at [ParseMessage] for received messages, at the Append functions for sent ones,
// and at [StartParams], the parameters of process/start, for an example of a method.
// Decoding is strict about what the protocol fixes (required members, types, base64) and
// tolerant otherwise: it ignores unknown members.
package protocol
