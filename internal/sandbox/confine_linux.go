package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"execserver/internal/cgroup"
	"execserver/internal/sandbox/launcher"
	"execserver/internal/seccomp"
	"execserver/protocol"
)

// engineState is the part of an engine that only Linux has.
type engineState struct {
	journal *journal
	dirs    []string // hidden: state and configuration of exec-server and exec-fleet
	secrets *secrets

	mu    sync.Mutex
	inUse []*target // targets that were still in use by others when they were given up
}

func newEngineState(opts *Options, log *slog.Logger) *engineState {
	dirs := stateDirs()
	if opts.StateDir != "" {
		dirs = []string{opts.StateDir}
	}
	dir := dirs[0]
	s := &engineState{journal: &journal{}}
	if opts.Mode == ModeOff {
		s.secrets = newSecrets(&Options{}, log)
		return s
	}
	s.journal = openJournal(dir, log)
	if opts.Mode == ModeLandlock {
		log = slog.New(slog.DiscardHandler)
	}
	s.secrets, s.dirs = newSecrets(opts, log), slices.Concat(programDirs(), dirs, opts.Private)
	return s
}

func (s *engineState) close() {
	s.release(nil)
	s.journal.close()
}

// release releases targets, and earlier ones that were still in use.
func (s *engineState) release(targets []*target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	targets = append(s.inUse, targets...) // targets released now may have been the last users of these
	s.inUse = nil
	for _, t := range slices.Backward(targets) {
		if !t.release() && len(s.inUse) < maxInUse {
			s.inUse = append(s.inUse, t)
		}
	}
}

// maxInUse bounds the number of remembered targets that other programs still use. The next
// use of a forgotten target removes it.
const maxInUse = 64

// Confinement is a policy that is ready to be enforced for one command.
type Confinement struct {
	plan      *plan
	engine    *Engine
	mechanism Mechanism
	targets   []*target
	makeIn    []string // as in Context, without links
}

// maxPlans is how often the engine makes a plan for one command.
const maxPlans = 20

// confine makes a Confinement from a policy. A file that existed when the plan was made
// may be gone before the plan is used, such as the target of another command's mount.
// Then confine makes the plan again.
func (e *Engine) confine(s *protocol.Sandbox, ctx Context) (c *Confinement, err error) {
	for range maxPlans {
		if c, err = e.confineNow(s, ctx); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return c, err
}

func (e *Engine) confineNow(s *protocol.Sandbox, ctx Context) (*Confinement, error) {
	ctx.Secrets, ctx.Trusted = realPaths(e.opts.Secrets), realPaths(e.opts.Trusted)
	ctx.SecretDirs = e.state.secrets.directories()
	ctx.State, ctx.Sockets, ctx.Landlock = e.state.dirs, e.opts.Sockets, e.opts.Mode == ModeLandlock
	if !ctx.Landlock && !s.FullWrite() {
		makeOwnDirectories(e.state.dirs)
	}
	p, err := resolve(s, ctx)
	if err != nil {
		return nil, err
	}
	c := &Confinement{plan: p, engine: e}
	if ctx.MakeIn != nil {
		c.makeIn = append([]string{}, realPaths(func() []string { return ctx.MakeIn })...)
	}
	if p.nothing {
		return c, nil // the seccomp filter works everywhere
	}
	var reason string
	if c.mechanism, reason = e.Mechanism(); c.mechanism == MechanismNone {
		return nil, &UnavailableError{reason}
	}
	if c.mechanism == MechanismLandlock {
		return c, p.checkLandlock()
	}
	if c.mechanism == MechanismBubblewrap {
		if err := p.checkBubblewrap(); err != nil {
			return nil, err
		}
	}
	return c, c.acquireTargets()
}

// checkBubblewrap refuses to protect links, because bubblewrap cannot mount over them.
func (p *plan) checkBubblewrap() error {
	for _, m := range p.mounts {
		if m.Kind == launcher.MountLink {
			return fmt.Errorf("cannot enforce sandbox read-only path %s because it crosses writable symlink %[1]s, which bubblewrap cannot protect; "+
				"allow user namespaces to this program, or replace the link with what it leads to", m.Path)
		}
	}
	return nil
}

// checkLandlock refuses policies that Landlock alone cannot enforce.
func (p *plan) checkLandlock() error {
	if p.network {
		return errNoSockets
	}
	hidden := slices.ContainsFunc(p.mounts, func(m launcher.Mount) bool {
		return m.Kind == launcher.MountHidden || m.Kind == launcher.MountHollow
	})
	if hidden || len(p.roots) > 0 || p.base == launcher.BaseWritable {
		return errNoFileSandbox
	}
	return nil
}

// acquireTargets creates the mount points that the plan needs.
func (c *Confinement) acquireTargets() error {
	mounts := c.plan.mounts[:0]
	for _, m := range c.plan.mounts {
		if m.Kind != launcher.MountWritable && m.Kind != launcher.MountHollow && m.Directory && c.plan.inRoot(m.Path) {
			t, err := c.targetFor(m.Path)
			if err != nil {
				c.Release()
				return err
			}
			if t != nil {
				c.targets = append(c.targets, t)
			}
			if err := identify(&m); err != nil && c.plan.missing[m.Path] {
				continue // no process can create it
			} else if err != nil {
				c.Release()
				return err
			}
		}
		mounts = append(mounts, m)
	}
	c.plan.mounts = mounts
	return nil
}

// targetFor acquires the target of a mount. It returns nil if the mount needs none.
func (c *Confinement) targetFor(path string) (*target, error) {
	missing := c.plan.missing[path]
	switch {
	case c.mayMake(path):
		return acquireTarget(path, missing, c.engine.state.journal)
	case missing && len(c.makeIn) == 0:
		return nil, fmt.Errorf("%s would have to be made for as long as the command runs, and these credentials, for some commands, "+
			"have no directory in which that is allowed", path)
	case missing:
		return nil, fmt.Errorf("%s would have to be made for as long as the command runs, and these credentials, for some commands, "+
			"allow that below %s alone", path, strings.Join(c.makeIn, " and "))
	}
	return borrowTarget(path)
}

// mayMake reports whether the server may create a target at a path.
func (c *Confinement) mayMake(path string) bool {
	dir := filepath.Dir(path)
	if c.makeIn == nil || slices.ContainsFunc(c.makeIn, func(in string) bool { return within(dir, in) }) {
		return true
	}
	if !slices.Contains(protected, filepath.Base(path)) {
		return false
	}
	info, err := os.Lstat(dir)
	return err == nil && info.IsDir() && info.Mode()&fs.ModeSticky != 0 && info.Mode().Perm()&0o002 != 0
}

// inRoot reports whether a path is in a writable directory. The server creates missing names
// only in such a directory.
func (p *plan) inRoot(path string) bool {
	return slices.ContainsFunc(p.roots, func(root string) bool { return within(filepath.Dir(path), root) })
}

// Release removes the mount points that the confinement has created. Every confined process
// must have ended.
func (c *Confinement) Release() {
	c.engine.state.release(c.targets)
	c.targets = nil
}

// network returns the sockets that the command may use.
func (c *Confinement) network() seccomp.Network {
	switch {
	case c.plan.network:
		return seccomp.NetworkMachine
	case c.plan.nothing, c.mechanism == MechanismLandlock: // in the machine's network namespace
		return seccomp.NetworkNone
	}
	return seccomp.NetworkOwn
}

// spec returns the Spec for the launcher of a command.
func (c *Confinement) spec(command Command) (*launcher.Spec, error) {
	p := c.plan
	s := &launcher.Spec{
		Network: c.network(),
		Exec:    command.Exec, Session: !command.Shared, Terminal: command.Terminal, Helper: command.Helper,
		Program: command.Program, Argv: command.Argv, Env: command.Env, Dir: command.Dir,
		Descriptors: softDescriptors(),
	}
	if command.DirFile != nil {
		var st unix.Stat_t
		if err := unix.Fstat(int(command.DirFile.Fd()), &st); err != nil {
			return nil, &fs.PathError{Op: "stat", Path: command.Dir, Err: err}
		}
		s.DirDevice, s.DirInode = st.Dev, st.Ino
	}
	switch {
	case p.nothing:
		s.KeepRights, s.Exec = true, true
	case c.mechanism == MechanismLandlock:
		s.Exec, s.LandlockOnly = true, true
		s.Landlock = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}
		s.LandlockRead = p.readable
		if p.base == launcher.BaseReadOnly {
			s.LandlockRead = []string{"/"}
		}
		s.LandlockRead, s.LandlockHide = append(s.LandlockRead, "/proc/self"), p.closed
	default:
		s.Processes = c.processes()
		s.Base, s.Mounts, s.Links = p.base, slices.Concat(p.mounts, p.kernel), p.links
		s.Check, s.OwnUsers = c.mechanism == MechanismBubblewrap, c.mechanism == MechanismUser
	}
	return s, nil
}

// minProcesses is the least number of processes that a command gets.
const minProcesses = 16

// processes returns the limit for the command. Without a user namespace of its own the
// kernel also counts this program's processes, and this program's limit applies.
func (c *Confinement) processes() uint64 {
	if c.mechanism == MechanismNamespaces {
		return 0
	}
	return processLimit()
}

// processLimit returns how many processes and threads a command may have: half of those
// that this program may have, so that this program and other commands keep what they
// need. 0 means no limit. The kernel counts processes for each user namespace and user,
// but never those of root.
func processLimit() uint64 {
	limit := uint64(math.MaxUint64)
	var own unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NPROC, &own) == nil && own.Cur != unix.RLIM_INFINITY {
		limit = own.Cur
	}
	if left, ok := cgroup.PidsAvailable(); ok {
		limit = min(limit, left)
	}
	if limit == math.MaxUint64 {
		return 0
	}
	return max(limit/2, minProcesses)
}

// softDescriptors returns the soft limit on descriptors with which this program starts others,
// or 0 if it is unknown. The Go runtime raises its own limit, and restores the earlier one,
// which it does not expose, in a child. A launcher, which lowers the hard limit, must know it.
var softDescriptors = sync.OnceValue(func() uint64 {
	output, err := exec.Command("/bin/sh", "-c", "ulimit -Sn").Output()
	if err != nil {
		return 0
	}
	limit, _ := strconv.ParseUint(strings.TrimSpace(string(output)), 10, 64)
	return limit
})

// reservedThreads is the number of threads that this program reserves for blocking calls.
const reservedThreads = 32

// ReserveThreads reserves threads ([launcher.ReserveThreads]) once. A server calls it before it
// starts its first command.
func ReserveThreads() { reserveThreads() }

var reserveThreads = sync.OnceFunc(func() { launcher.ReserveThreads(reservedThreads) })
