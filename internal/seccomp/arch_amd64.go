package seccomp

// Supported reports whether there is a filter for this architecture.
const Supported = true

var host = amd64
