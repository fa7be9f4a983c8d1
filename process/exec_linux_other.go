//go:build linux && !amd64

package process

// forkExec is syscall.ForkExec with a mark for the child.
func forkExec(c *spawnCall, _ bool) (pid int, err error) { return markedForkExec(c) }
