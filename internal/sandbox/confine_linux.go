package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"execserver/internal/sandbox/launcher"
	"execserver/internal/seccomp"
	"execserver/protocol"
)

// engineState is the part of an engine that only Linux has.
type engineState struct {
	journal *journal
	dirs    []string // of the programs' state and configuration, to be hidden
	secrets *secrets

	mu   sync.Mutex
	left []*target // targets that were still in use by others when they were given up
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
	s.secrets, s.dirs = newSecrets(opts, log), append(programDirs(), dirs...)
	return s
}

func (s *engineState) close() {
	s.giveUp(nil)
	s.journal.close()
}

// giveUp releases targets, and earlier ones that others used until now.
func (s *engineState) giveUp(targets []*target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	targets = append(s.left, targets...) // targets released now may have been used by the others left
	s.left = nil
	for _, t := range slices.Backward(targets) {
		if !t.release() && len(s.left) < maxLeft {
			s.left = append(s.left, t)
		}
	}
}

// maxLeft bounds the number of remembered targets that others use. The next use of a
// forgotten target removes it.
const maxLeft = 64

// Confinement is a policy that is ready to be enforced for one command.
type Confinement struct {
	plan    *plan
	engine  *Engine
	means   Means
	targets []*target
	makeIn  []string // as in Context, without links
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
		makeOwn(e.state.dirs)
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
	if c.means, reason = e.Means(); c.means == MeansNone {
		return nil, &UnavailableError{reason}
	}
	if c.means == MeansLandlock {
		return c, p.checkLandlock()
	}
	if c.means == MeansBubblewrap {
		if err := p.checkBubblewrap(); err != nil {
			return nil, err
		}
	}
	return c, c.acquireTargets()
}

// checkBubblewrap refuses to protect links, over which bubblewrap mounts nothing.
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
				continue // nobody can create it
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

// targetFor returns a target for a mount, if there is one or must be one.
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

// inRoot reports whether a path is in a writable directory. Only there the server creates
// missing names.
func (p *plan) inRoot(path string) bool {
	return slices.ContainsFunc(p.roots, func(root string) bool { return within(filepath.Dir(path), root) })
}

// Release removes what the confinement has created. Every confined process must have
// ended.
func (c *Confinement) Release() {
	c.engine.state.giveUp(c.targets)
	c.targets = nil
}

// network returns the sockets that the command may use.
func (c *Confinement) network() seccomp.Network {
	switch {
	case c.plan.network:
		return seccomp.NetworkMachine
	case c.plan.nothing, c.means == MeansLandlock: // in the machine's network namespace
		return seccomp.NetworkNone
	}
	return seccomp.NetworkOwn
}

// spec returns the Spec for the launcher of a command.
func (c *Confinement) spec(command Command) (*launcher.Spec, error) {
	p := c.plan
	s := &launcher.Spec{
		Network: c.network(),
		Become:  command.Become, Session: !command.Shared, Terminal: command.Terminal, Helper: command.Helper,
		Program: command.Program, Argv: command.Argv, Env: command.Env, Dir: command.Dir,
		Descriptors: softDescriptors(),
	}
	if command.DirFile != nil {
		var st unix.Stat_t
		if err := unix.Fstat(int(command.DirFile.Fd()), &st); err != nil {
			return nil, &fs.PathError{Op: "look at", Path: command.Dir, Err: err}
		}
		s.DirDevice, s.DirInode = st.Dev, st.Ino
	}
	switch {
	case p.nothing:
		s.KeepRights, s.Become = true, true
	case c.means == MeansLandlock:
		s.Become, s.LandlockOnly = true, true
		s.Landlock = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}
		s.LandlockRead = p.readable
		if p.base == launcher.BaseReadOnly {
			s.LandlockRead = []string{"/"}
		}
		s.LandlockRead, s.LandlockHide = append(s.LandlockRead, "/proc/self"), p.closed
	default:
		s.Processes = c.processes()
		s.Base, s.Mounts, s.Links = p.base, slices.Concat(p.mounts, p.kernel), p.links
		s.Check, s.OwnUsers = c.means == MeansBubblewrap, c.means == MeansUser
	}
	return s, nil
}
