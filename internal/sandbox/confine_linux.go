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
	"execserver/protocol"
)

// engineState is what an engine has on Linux.
type engineState struct {
	journal *journal
	dir     string // of the journal, where it is to be hidden
	secrets *secrets
	share   share

	mu   sync.Mutex
	left []*target // that others used when they were given up
}

func newEngineState(opts *Options, log *slog.Logger) *engineState {
	dirs := stateDirs()
	if opts.StateDir != "" {
		dirs = []string{opts.StateDir}
	}
	dir := dirs[0]
	s := &engineState{journal: &journal{}, share: share{dir: dir, dirs: dirs, log: log}}
	if opts.Mode == ModeOff {
		s.secrets = newSecrets(&Options{}, log)
		return s
	}
	s.journal = openJournal(dir, log)
	if opts.Mode == ModeLandlock {
		log = slog.New(slog.DiscardHandler)
	}
	s.secrets = newSecrets(opts, log)
	if opts.Mode != ModeLandlock { // which hides nothing, nor lets anything be written
		s.dir = dir
	}
	return s
}

func (s *engineState) close() {
	s.giveUp(nil)
	s.journal.close()
}

// giveUp gives targets up, with those that others have used until now.
func (s *engineState) giveUp(targets []*target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	targets = append(s.left, targets...) // what is given up now was used, perhaps, by that which is left
	s.left = nil
	for _, t := range slices.Backward(targets) {
		if !t.release() && len(s.left) < maxLeft {
			s.left = append(s.left, t)
		}
	}
}

// maxLeft bounds what is remembered of targets in use by others; what is
// forgotten is removed by the next use.
const maxLeft = 64

// Confinement is a policy that is ready to be enforced, for one command.
type Confinement struct {
	plan    *plan
	engine  *Engine
	means   Means
	targets []*target
	makeIn  []string // as Context has it, without links
}

// maxPlans is how often a plan is made for one command.
const maxPlans = 20

// confine makes a Confinement of a policy. What was there when the plan was made
// may be gone before it is put to use, such as the target of another command's
// mount; then the plan is made again.
func (e *Engine) confine(s *protocol.Sandbox, ctx Context) (c *Confinement, err error) {
	for range maxPlans {
		if c, err = e.confineNow(s, ctx); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err == nil && c.plan.network && !c.plan.nothing {
		e.networked.add(c)
	}
	return c, err
}

func (e *Engine) confineNow(s *protocol.Sandbox, ctx Context) (*Confinement, error) {
	ctx.Secrets, ctx.Trusted = realPaths(e.opts.Secrets), realPaths(e.opts.Trusted)
	ctx.SecretDirs = e.state.secrets.directories()
	ctx.State, ctx.Sockets = e.state.dir, e.opts.Sockets
	p, err := resolve(s, ctx)
	if err != nil {
		return nil, err
	}
	c := &Confinement{plan: p, engine: e}
	if ctx.MakeIn != nil {
		c.makeIn = append([]string{}, realPaths(func() []string { return ctx.MakeIn })...)
	}
	if p.nothing {
		return c, nil // the filter of system calls works everywhere
	}
	var reason string
	if c.means, reason = e.Means(); c.means == MeansNone {
		return nil, &UnavailableError{reason}
	}
	if c.means == MeansLandlock {
		return c, p.checkLandlock()
	}
	return c, c.takeTargets()
}

// checkLandlock refuses what Landlock alone cannot enforce.
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

// takeTargets makes what the mounts of the plan need to sit on.
func (c *Confinement) takeTargets() error {
	mounts := c.plan.mounts[:0]
	for _, m := range c.plan.mounts {
		if m.Kind != launcher.MountWritable && m.Kind != launcher.MountHollow && m.Directory && c.plan.inRoot(m.Path) {
			t, err := c.takeTarget(m.Path)
			if err != nil {
				c.Release()
				return err
			}
			if t != nil {
				c.targets = append(c.targets, t)
			}
			if err := identify(&m); err != nil && c.plan.missing[m.Path] {
				continue // nobody can make it
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

// takeTarget takes a target for a mount, if there is or shall be one.
func (c *Confinement) takeTarget(path string) (*target, error) {
	missing := c.plan.missing[path]
	switch {
	case c.mayMake(path):
		return takeTarget(path, missing, c.engine.state.journal)
	case missing && len(c.makeIn) == 0:
		return nil, fmt.Errorf("%s would have to be made for as long as the command runs, and these credentials, for some commands, "+
			"have no directory in which that is allowed", path)
	case missing:
		return nil, fmt.Errorf("%s would have to be made for as long as the command runs, and these credentials, for some commands, "+
			"allow that below %s alone", path, strings.Join(c.makeIn, " and "))
	}
	return borrowTarget(path)
}

// mayMake reports whether a target may be made at a path.
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

// inRoot reports whether a path is in something that may be written: only there
// what is missing is made.
func (p *plan) inRoot(path string) bool {
	return slices.ContainsFunc(p.roots, func(root string) bool { return within(filepath.Dir(path), root) })
}

// Release gives back what the confinement has made. Everything that it confines
// must have ended.
func (c *Confinement) Release() {
	c.engine.networked.remove(c)
	c.engine.state.giveUp(c.targets)
	c.targets = nil
}

// spec is the launcher's part of a command.
func (c *Confinement) spec(command Command) (*launcher.Spec, error) {
	p := c.plan
	s := &launcher.Spec{
		RestrictNetwork: !p.network,
		Become:          command.Become, Session: !command.Shared, Terminal: command.Terminal,
		Program: command.Program, Argv: command.Argv, Env: command.Env, Dir: command.Dir,
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
		s.LandlockRead = append(s.LandlockRead, "/proc/self")
	default:
		s.Processes = c.processes()
		s.Base, s.Mounts, s.Links = p.base, slices.Concat(p.mounts, p.kernel), p.links
		s.Check, s.OwnUsers = c.means == MeansBubblewrap, c.means == MeansUser
	}
	return s, nil
}
