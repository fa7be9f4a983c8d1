//go:build !amd64

package protocol

func plainFast([]byte) int { return 0 }
