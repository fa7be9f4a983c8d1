package sandbox

import "golang.org/x/sys/unix"

// capabilities returns the capabilities of this thread, and the header for Capset.
func capabilities() (header unix.CapUserHeader, data [2]unix.CapUserData, err error) {
	header.Version = unix.LINUX_CAPABILITY_VERSION_3
	err = unix.Capget(&header, &data[0])
	return header, data, err
}

// hasCapability reports whether this program has a capability.
func hasCapability(capability int) bool {
	_, data, err := capabilities()
	return err == nil && data[capability/32].Effective&(1<<(capability%32)) != 0
}
