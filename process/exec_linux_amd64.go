package process

import (
	"syscall"

	"execserver/internal/vfork"
)

// forkExec is syscall.ForkExec with a mark for the child. It lets goroutines run
// meanwhile where it can, for which the thread must have a table of descriptors of
// its own.
func forkExec(c *spawnCall, own bool) (pid int, err error) {
	files := c.attr.Files
	inSandbox := c.attr.Sys.Cloneflags != 0 || len(files) > 3
	if !own || inSandbox || min(files[0], files[1], files[2]) < 3 {
		return markedForkExec(c)
	}
	attr := vfork.Attr{
		Dir: c.attr.Dir, Env: c.attr.Env, Files: [3]uintptr(files), Ctty: c.attr.Sys.Setctty,
		Pdeathsig: int(c.attr.Sys.Pdeathsig), Cgroup: -1,
	}
	if c.attr.Sys.UseCgroupFD {
		attr.Cgroup = c.attr.Sys.CgroupFD
	}
	if limit, err := locksOf(c.mark); err == nil { // another child's, while that one is made by markedForkExec
		attr.Limits = []vfork.Limit{{Resource: rlimitLocks, Rlimit: vfork.Rlimit(limit)}}
	}
	pid, errno, refused := vfork.ForkExec(c.path, c.argv, &attr)
	switch {
	case refused: // by an old kernel, or a container
		return markedForkExec(c)
	case pid == 0:
		return 0, syscall.Errno(errno)
	}
	return pid, nil
}
