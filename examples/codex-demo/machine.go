package main

// A machine is what a program runs on as if it were another one: with a host name, files and
// processes of its own, in namespaces of Linux. It shares the network and, read-only, the
// installed programs with this machine. Its root has what this machine has in /usr, /etc and
// the like, and otherwise only what the fields say. It is not a sandbox.
type machine struct {
	Name  string            // its host name
	Root  string            // an empty directory here, to build its root in
	Files map[string]string // content by absolute path; only the user there can read it
	Links map[string]string // files and directories of this machine by the absolute path where they appear
	Dir   string            // where the program starts; it is made
	Argv  []string          // the program, with its absolute path there
	Env   []string
}
