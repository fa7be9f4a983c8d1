//go:build !unix

package transport

func restrictSocket(uintptr) {}
