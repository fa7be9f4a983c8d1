// Package workspace tests how the program shows directories under the paths that clients
// name, as root and as an ordinary user.
package workspace
