//go:build !amd64 && !arm64

package seccomp

// Supported reports whether there is a filter for this architecture.
const Supported = false

var host architecture
