//go:build faults

package fault

import (
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Plan says which call fails, and how. Only calls while the plan is armed count.
type Plan struct {
	N     int           // the number of the call that fails, from 1; 0: none
	Times int           // how many calls in a row fail from that one; 0 means 1
	Err   syscall.Errno // 0: delay the call by Delay instead
	Delay time.Duration
	Place string // count only calls here, one of a Report's Places; "" means all
	Panic bool   // panic instead
}

// Report says what happened while a plan was armed.
type Report struct {
	Calls  int      // calls that counted for the plan
	Hits   []string // calls that failed or were delayed, as "open at process/spawn.go:51"
	Places []string // all points that were reached
}

// The state of the armed plan.
var (
	mu     sync.Mutex
	armed  *Plan
	report Report
	places map[string]bool
)

// Arm starts to count calls for a plan. It panics if a plan is armed already.
func Arm(p Plan) {
	mu.Lock()
	defer mu.Unlock()
	if armed != nil {
		panic("fault: two plans at the same time")
	}
	p.Times = max(p.Times, 1)
	armed, report, places = &p, Report{}, make(map[string]bool)
}

// Disarm ends the plan and returns what happened.
func Disarm() Report {
	mu.Lock()
	defer mu.Unlock()
	report.Places = slices.Sorted(maps.Keys(places))
	armed = nil
	return report
}

// At returns the error that the armed plan has for this call, or delays the call. A call
// that never fails with the plan's errno does not count.
func At(point string) error {
	mu.Lock()
	p := armed
	if p == nil {
		mu.Unlock()
		return nil
	}
	place := point + " at " + caller()
	places[place] = true
	if p.Place != "" && p.Place != place || p.Err != 0 && !slices.Contains(errnos[point], p.Err) {
		mu.Unlock()
		return nil
	}
	report.Calls++
	hit := p.N > 0 && report.Calls >= p.N && report.Calls < p.N+p.Times
	if hit {
		report.Hits = append(report.Hits, place)
	}
	mu.Unlock()
	switch {
	case !hit:
		return nil
	case p.Panic:
		panic("injected at " + place)
	case p.Err != 0:
		return p.Err
	}
	time.Sleep(p.Delay)
	return nil
}

// Errnos returns the errors with which a call at a place may really fail.
func Errnos(place string) []syscall.Errno {
	point, _, _ := strings.Cut(place, " at ")
	return errnos[point]
}

// caller returns the place outside of this package and package sys that reached a point.
func caller() string {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		frame, more := frames.Next()
		if !strings.Contains(frame.Function, "/internal/sys.") && !strings.Contains(frame.Function, "/internal/fault.") {
			dir, file := filepath.Split(frame.File)
			return fmt.Sprintf("%s/%s:%d", filepath.Base(dir), file, frame.Line)
		}
		if !more {
			return "?"
		}
	}
}

// Errors that several calls share.
var (
	opening = []syscall.Errno{syscall.EMFILE, syscall.ENOMEM, syscall.EINTR}
	looking = []syscall.Errno{syscall.ENOMEM, syscall.EACCES}
	making  = []syscall.Errno{syscall.ENOMEM, syscall.EPERM, syscall.ENOSPC}
	asking  = []syscall.Errno{syscall.EPERM, syscall.EINVAL, syscall.ENOSYS, syscall.ENOMEM}
)

// errnos are the errors with which the call after each point may really fail. They leave
// out an error that would report a false state: that a pipe is empty, which the poller
// would believe for good, or that a process has ended.
var errnos = map[string][]syscall.Errno{
	"open": opening, "openat": opening, "readfile": opening, "readdir": opening, "pipe": opening,
	"open terminal": append([]syscall.Errno{syscall.ENOSPC, syscall.EIO}, opening...), "dup": opening,
	"epoll_create": opening, "inotify_init": opening, "socketpair": append([]syscall.Errno{syscall.EPERM}, opening...),
	"pidfd_open": {syscall.EMFILE, syscall.ENOMEM, syscall.EPERM, syscall.ENOSYS},
	"accept":     {syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.EPERM},

	"stat": looking, "lstat": looking, "fstat": looking, "statx": looking, "access": looking, "readlink": looking, "getdents": looking,
	"listxattr": looking, "getxattr": looking,

	"mkdir": making, "rmdir": {syscall.EBUSY, syscall.ENOMEM}, "unlink": making, "rename": making, "truncate": append([]syscall.Errno{syscall.EINTR}, making...),
	"chmod": making, "chown": making, "setxattr": making, "removexattr": making, "symlink": making,
	"fallocate": append([]syscall.Errno{syscall.EINTR, syscall.ENOSYS, syscall.EOPNOTSUPP}, making...),
	"writefile": append([]syscall.Errno{syscall.EMFILE, syscall.EBUSY, syscall.ENODEV}, making...),

	"read": {syscall.EINTR}, "read output": {syscall.EINTR, syscall.EIO}, "poll": {syscall.EINTR, syscall.ENOMEM},
	"write": {syscall.EINTR, syscall.EAGAIN, syscall.ENOMEM}, "write file": {syscall.ENOMEM},
	"seek":  {syscall.EIO},
	"close": {syscall.EINTR, syscall.EIO},

	"kill": {syscall.EPERM}, "pidfd_send_signal": {syscall.EPERM, syscall.ENOSYS},
	"wait": {syscall.EINTR}, "waitid": {syscall.EINTR},
	"prctl": asking, "prlimit": nil, "ioctl": append([]syscall.Errno{syscall.EIO}, asking...), "flock": {syscall.EINTR, syscall.ENOMEM},
	"nonblock": asking, "inotify_add_watch": {syscall.ENOMEM, syscall.ENOSPC, syscall.EACCES}, "epoll_ctl": {syscall.ENOMEM, syscall.ENOSPC},
	"sendmsg": {syscall.EINTR, syscall.ENOMEM, syscall.EPERM},
	"fork":    {syscall.EAGAIN, syscall.ENOMEM, syscall.EPERM, syscall.ENOSYS, syscall.EMFILE, syscall.EINTR},

	"conn read": {syscall.ECONNRESET, syscall.EIO}, "conn write": {syscall.ECONNRESET, syscall.EPIPE, syscall.ENOMEM},
	"conn close": {syscall.EIO}, "conn deadline": {syscall.EINVAL},
}
