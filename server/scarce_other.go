//go:build !unix

package server

import "net"

// maxPendingDescriptors is how many descriptors connections may take that are not
// upgraded yet; here they are not counted.
func maxPendingDescriptors() int { return 1 << 20 }

func scarce(net.Conn) bool { return false }

func unread(net.Conn) bool { return false }
