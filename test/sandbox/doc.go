// Package sandbox attacks the sandbox of the server: programs in it try whatever
// they should not be able to do, as root and as an ordinary user, by every means
// of confinement that the machine has. Attempts have the number of the kind of
// attack before their name, and other tests in a comment: "row 26".
package sandbox
