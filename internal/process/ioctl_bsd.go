//go:build unix && !linux

package process

// ioctlReadable is FIONREAD, _IOR('f', 127, int) on every BSD and on macOS.
const ioctlReadable = 0x4004667f
