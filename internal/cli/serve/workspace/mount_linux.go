package workspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/supervisor"
)

// Environment variables for Run. The first holds the workspaces to mount, as JSON. With the
// second, the program ends after mounting them. Both affect only a namespace of the program
// itself.
const (
	variable    = "EXEC_SERVER_WORKSPACES"
	tryVariable = "EXEC_SERVER_WORKSPACES_TRY"
)

// tryTimeout bounds an attempt, which usually takes milliseconds.
const tryTimeout = 10 * time.Second

// Mount shows the workspaces by bind mounts in a new mount namespace, and re-executes this
// program in it with the same arguments and process id. It returns only on failure, for example
// without the capability to mount, and has then changed nothing.
func Mount(list []Workspace) error {
	failed := make(chan error)
	go func() { // ends with its thread, which is in another namespace
		runtime.LockOSThread()
		err := mountAll(list)
		if err == nil {
			err = again()
		}
		failed <- err
	}()
	return <-failed
}

// again re-executes this program in the namespaces of the thread.
func again() error {
	self, err := supervisor.Program()
	if err != nil {
		return err
	}
	return &os.PathError{Op: "execute", Path: self, Err: syscall.Exec(self, os.Args, os.Environ())}
}

// TryUserNamespace tests whether this user can show the workspaces by bind mounts in a user
// namespace. environment makes a program that calls Run in such a namespace mount them, such as a
// supervised server: see supervisor.Info.
func TryUserNamespace(list []Workspace) (environment string, err error) {
	plain := make([]Workspace, len(list))
	for i, w := range list { // in the namespace, links of root look like links of others
		if plain[i], err = w.real(); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(plain)
	if err != nil {
		return "", err
	}
	self, err := supervisor.Program()
	if err != nil {
		return "", err
	}
	environment = variable + "=" + string(text)
	var trouble strings.Builder
	cmd := exec.Command(self)
	cmd.Env, cmd.Stderr = append(os.Environ(), environment, tryVariable+"=1"), &trouble
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	supervisor.UserNamespace(cmd.SysProcAttr)
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("the kernel refuses a user namespace: %w", err)
	}
	timer := time.AfterFunc(tryTimeout, func() { _ = cmd.Process.Kill() }) // Wait reports it
	err = cmd.Wait()
	timer.Stop()
	switch text := strings.TrimPrefix(strings.TrimSpace(trouble.String()), "Error: "); {
	case err != nil && text != "":
		return "", errors.New(text)
	case err != nil:
		return "", err
	}
	return environment, nil
}

// Run mounts the workspaces named in the environment, if any, in a new mount namespace, drops all
// capabilities, and re-executes this program. Call it at the top of main. It returns an error if
// that fails.
func Run() error {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return nil
	}
	_, try := os.LookupEnv(tryVariable)
	_ = os.Unsetenv(variable) // the names are well-formed
	_ = os.Unsetenv(tryVariable)
	var list []Workspace
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return fmt.Errorf("understand %s: %w", variable, err)
	}
	runtime.LockOSThread()
	if err := mountAll(list); err != nil {
		return err
	}
	if try {
		os.Exit(0)
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	return again()
}

// dropCapabilities drops the capabilities of this thread, so that they do not survive the next
// execve.
func dropCapabilities() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return os.NewSyscallError("give up ambient capabilities", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return os.NewSyscallError("give up capabilities", unix.Capset(&header, &none[0]))
}

// mountAll moves the thread into a new mount namespace and mounts the workspaces. Later mounts
// outside the namespace appear in it too.
func mountAll(list []Workspace) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("make a mount namespace", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return os.NewSyscallError("keep mounts in the namespace", err)
	}
	for _, w := range list {
		if err := w.mount(); err != nil {
			return fmt.Errorf("show %s under %s: %w", w.Source, w.Path, err)
		}
	}
	for _, w := range list {
		shown, err := w.leads()
		if err == nil && !shown {
			err = errors.New("it is mounted, but something else is there")
		}
		if err != nil {
			return fmt.Errorf("show %s under %s: %w", w.Source, w.Path, err)
		}
	}
	return os.Chdir(dir) // a mount may cover it
}

// mount shows the workspace by a bind mount.
func (w Workspace) mount() error {
	point, err := makeAll(w.Path)
	if err != nil {
		return err
	}
	source, err := openReal(w.Source)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := openDir(point)
	if err != nil {
		return err
	}
	defer target.Close()
	name := func(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }
	if err := unix.Mount(name(source), name(target), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return &os.PathError{Op: "mount on", Path: target.Name(), Err: err}
	}
	return nil
}

// openReal opens a directory. It follows only the links that resolve accepts.
func openReal(path string) (*os.File, error) {
	real, rest, err := resolve(path)
	if err != nil {
		return nil, err
	}
	return openDir(filepath.Join(append([]string{real}, rest...)...))
}

// openDir opens a directory by a path without links, and fails if the path has one.
func openDir(path string) (*os.File, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	root, names := split(path)
	fd, err := unix.Open(root, flags, 0)
	for _, name := range names {
		if err != nil {
			break
		}
		dir := fd
		fd, err = unix.Openat(dir, name, flags, 0)
		_ = unix.Close(dir)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
