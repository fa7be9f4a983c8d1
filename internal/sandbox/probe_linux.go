package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/sandbox/launcher"
	"execserver/internal/seccomp"
	"execserver/protocol"
)

// remedy is the advice if no mechanism works.
const remedy = "allow user namespaces to this program (in a container: a seccomp profile that lets clone and mount pass; " +
	"on Ubuntu: an AppArmor profile, or kernel.apparmor_restrict_unprivileged_userns=0), or install bubblewrap; " +
	"on a machine that is a sandbox itself, run the client without one (danger-full-access)"

// findMechanism tries the mechanisms until one confines a program. The text explains why those
// before it do not.
func (e *Engine) findMechanism() (Mechanism, string) {
	if !seccomp.Supported {
		return MechanismNone, "there is no filter of system calls for " + runtime.GOARCH
	}
	if !launcher.Installed() { // otherwise the program would start itself as something else
		return MechanismNone, "this program does not call server.RunHelper at the top of its main function"
	}
	candidates := e.opts.Mechanisms
	switch {
	case e.opts.Mode == ModeLandlock:
		candidates = []Mechanism{MechanismLandlock}
	case candidates == nil:
		candidates = []Mechanism{MechanismUser, MechanismNamespaces, MechanismBubblewrap}
	}
	var reasons []string
	for _, mechanism := range candidates {
		err := e.testMechanism(mechanism)
		if err == nil {
			e.state.secrets.directories() // logs warnings
			return mechanism, strings.Join(reasons, "; ")
		}
		reasons = append(reasons, fmt.Sprintf("%s: %s", mechanism, err))
	}
	return MechanismNone, strings.Join(append(reasons, remedy), "; ")
}

// probeDir creates a directory for a probe. It must not be in /dev, because a sandbox has
// its own writable /dev.
func probeDir() (dir string, err error) {
	for _, parent := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if !filepath.IsAbs(parent) {
			err = fmt.Errorf("%s is relative to a directory that is another one in a sandbox", parent)
			continue
		}
		if parent, err = filepath.EvalSymlinks(parent); err != nil {
			continue
		}
		if parent == "/dev" || strings.HasPrefix(parent, "/dev/") {
			err = fmt.Errorf("%s is another directory in a sandbox", parent)
			continue
		}
		if dir, err = os.MkdirTemp(parent, "exec-server-probe-"); err == nil {
			return dir, nil
		}
	}
	return "", err
}

// testMechanism runs a program that attempts what a sandbox must deny. That usually takes some
// milliseconds.
func (e *Engine) testMechanism(mechanism Mechanism) error {
	if mechanism == MechanismNamespaces && !hasCapability(unix.CAP_SYS_ADMIN) {
		return errors.New("this program lacks the capability SYS_ADMIN")
	}
	dir, err := probeDir()
	if err != nil {
		return fmt.Errorf("make a directory to try it in: %w", err)
	}
	defer os.RemoveAll(dir)
	root := filepath.Join(dir, launcher.ProbeRoot)
	if err := os.MkdirAll(filepath.Join(root, ".git"), 0o700); err != nil {
		return fmt.Errorf("make a directory to try it in: %w", err)
	}
	policy := &protocol.Sandbox{Files: &protocol.FilePolicy{Entries: []protocol.FileEntry{
		{Access: protocol.AccessRead, Special: protocol.SpecialRoot},
	}}}
	outside, err := launcher.Namespaces()
	if err != nil {
		return fmt.Errorf("identify the namespaces outside: %w", err)
	}
	command := Command{Program: launcher.Self, Argv: []string{"exec-server", launcher.ProbeArgument, dir, outside}, Dir: "/", Helper: true}
	if mechanism == MechanismLandlock {
		command.Argv = []string{"exec-server", launcher.LandlockArgument, dir}
	} else {
		policy.Files.Entries = append(policy.Files.Entries,
			protocol.FileEntry{Access: protocol.AccessWrite, Path: protocol.URIPath(root)})
	}
	p, err := resolve(policy, Context{})
	if err != nil {
		return err
	}
	c := &Confinement{plan: p, engine: e, mechanism: mechanism}
	defer c.Release()
	if err := c.acquireTargets(); err != nil {
		return err
	}
	var output strings.Builder
	ctx, cancel := context.WithTimeoutCause(e.ctx, e.opts.ProbeTimeout, fmt.Errorf("it has not ended for %s", e.opts.ProbeTimeout))
	defer cancel()
	err = c.Run(ctx, command, func(cmd *exec.Cmd) { cmd.Stdout = &output })
	if output.Len() > 0 {
		return errors.New(output.String())
	}
	return err
}

// Run runs a command in the confinement until it or ctx ends. adjust sets its streams.
// The effects of a command before an error stay.
func (c *Confinement) Run(ctx context.Context, command Command, adjust func(*exec.Cmd)) error {
	// The kernel sends the parent-death signal when the thread ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l, err := c.Launch(command)
	if err != nil {
		return err
	}
	defer l.Close()
	cmd := exec.CommandContext(ctx, l.Path, l.Args[1:]...)
	cmd.Args, cmd.Env, cmd.Dir = l.Args, []string{}, "/"
	cmd.ExtraFiles = l.Files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: !command.Shared}
	cmd.WaitDelay = time.Second
	l.Attributes(cmd.SysProcAttr)
	adjust(cmd)
	if err := cmd.Start(); err != nil {
		return ExplainStart(err)
	}
	_, launchErr := l.Wait(cmd.Process.Pid)
	switch {
	case launchErr != nil:
		l.Close() // it may still wait
	case command.Started != nil:
		command.Started(cmd.Process)
	}
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case launchErr != nil:
		return launchErr
	}
	return err
}

// ExplainStart adds to an error of starting a launcher what the kernel refuses.
func ExplainStart(err error) error {
	errno, ok := errors.AsType[syscall.Errno](err)
	switch {
	case errno == syscall.ENOSPC:
		return fmt.Errorf("the kernel allows no more user namespaces (sysctl user.max_user_namespaces): %w", errno)
	case ok:
		return fmt.Errorf("the kernel refuses to start a program in namespaces of its own: %w", errno)
	}
	return err
}
