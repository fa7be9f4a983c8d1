// Package cgroup makes control groups of Linux (version 2) for processes, so
// that everything that a process starts can be found, limited and killed
// whatever it does. Start at [Claim].
package cgroup
