// Package cgroup creates Linux control groups (version 2) for processes. With them the
// server can find, limit and kill all descendants of a process, whatever they do. Start
// at [Claim].
package cgroup
