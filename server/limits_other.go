//go:build !unix

package server

// quarterOfDescriptors returns how many descriptors connections may use before their
// upgrade, and how many connections the server may make for clients. This system does not
// limit them.
func quarterOfDescriptors() int { return 1 << 20 }
