// Package machine runs a program as if on another machine: with a host name, files and
// processes of its own, in namespaces of Linux. It shares the network and, read-only, the
// installed programs with this machine. Demonstrations and recordings use it; it is no
// sandbox.
package machine

import "errors"

// ErrUnsupported is matched by the errors of a system that allows no such namespaces.
var ErrUnsupported = errors.New("this system allows no other machine")

// A Machine is one that a program is to run on. Its root has what this machine has in
// /usr, /etc and the like, and otherwise only what the fields say.
type Machine struct {
	Name  string            // its host name
	Root  string            // an empty directory here, to build its root in
	Files map[string]string // content by absolute path; only the user there can read it
	Links map[string]string // files and directories of this machine by the absolute path where they appear
	Dir   string            // where the program starts; it is made
	Argv  []string          // the program, with its absolute path there
	Env   []string
}
