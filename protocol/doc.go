// Package protocol is the exec-server wire as data: the envelope, the names of
// the methods and notifications, their parameters and results, and the error
// codes. It does no I/O and starts no goroutine. PROTOCOL.md at the root of the
// repository is the text that this package follows, section by section.
//
// Start at [ParseMessage] for what arrives, at the Append functions for what is
// sent, and at [Start], the parameters of process/start, for the shape of a
// method. Decoding is strict about what the wire fixes (required members, types,
// base64) and tolerant about the rest: unknown members are ignored.
package protocol
