// Package procfs reads the files of the Linux kernel about processes, in /proc.
package procfs
