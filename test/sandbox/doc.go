// Package sandbox attacks the sandbox of the server: programs in it try whatever
// they should not be able to do, as root and as an ordinary user, by every means
// of confinement that the machine has.
package sandbox
