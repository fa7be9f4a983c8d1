// Package sandbox attacks the sandbox of the server. Programs in the sandbox try what
// they must not be able to do, as root and as an ordinary user, with every means of
// confinement that the machine has. The name of an attempt begins with the number of the
// kind of attack; other tests have the number in a comment, such as "row 26".
package sandbox
