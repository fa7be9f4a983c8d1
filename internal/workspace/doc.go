// Package workspace makes the directories that clients name exist on this machine. A
// client such as Codex names the directory in which it was started on its own machine. The
// package makes it here, or shows another directory in its place: by a bind mount that
// only this program and what it starts see, or by a symbolic link.
package workspace
