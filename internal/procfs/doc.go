// Package procfs reads what the Linux kernel tells about processes in /proc.
package procfs
