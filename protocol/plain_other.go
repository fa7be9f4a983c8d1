//go:build !amd64

package protocol

func plainFast([]byte) (n int, wide bool) { return 0, false }
