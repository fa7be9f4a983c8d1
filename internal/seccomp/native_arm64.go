package seccomp

// Supported says whether there is a filter for this architecture.
const Supported = true

var native = arm64
