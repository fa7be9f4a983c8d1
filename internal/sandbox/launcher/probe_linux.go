package launcher

import (
	"errors"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ProbeArgument makes this program attempt operations that a sandbox must deny. Two arguments
// follow: a directory in which ProbeRoot is writable, and the Namespaces outside. The program
// reports operations that should have failed on standard output.
const (
	ProbeArgument = "@sandbox-probe"
	ProbeRoot     = "root"
)

func runProbe(dir, outside string) {
	if problem := probe(dir, outside); problem != "" {
		_, _ = os.Stdout.WriteString(problem)
		syscall.Exit(1)
	}
	syscall.Exit(0)
}

// probe returns a problem of the sandbox in which it runs, or "".
func probe(dir, outside string) string {
	root := path.Join(dir, ProbeRoot)
	create := func(name string) error {
		fd, err := unix.Open(name, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
	if err := create(path.Join(root, "inside")); err != nil {
		return "a file in a writable directory cannot be made: " + err.Error()
	}
	for _, attempt := range []struct {
		what string
		err  error
		want []error
	}{
		{"make a file outside", create(path.Join(dir, "outside")), []error{unix.EROFS}},
		{"make a file in .git", create(path.Join(root, ".git", "file")), []error{unix.EROFS}},
		{"make a missing .codex", unix.Mkdir(path.Join(root, ".codex"), 0o700), []error{unix.EROFS, unix.EEXIST}},
		{"change a mode outside", unix.Chmod(dir, 0o755), []error{unix.EROFS}},
		{"open a unix socket", openSocket(unix.AF_UNIX), []error{unix.EPERM}},
		{"write a setting of the kernel", create("/proc/sys/kernel/hostname"), []error{unix.EROFS, unix.EACCES}},
		{"see processes or use the network outside", seeOutside(outside), []error{unix.ESRCH}},
		{"mount", unix.Mount("tmpfs", root, "tmpfs", 0, ""), []error{unix.EPERM}},
	} {
		if !oneOf(attempt.err, attempt.want) {
			if attempt.err == nil {
				return "it does not keep a program from this: " + attempt.what
			}
			return "to " + attempt.what + " fails in another way than it should: " + attempt.err.Error()
		}
	}
	return ""
}

func oneOf(err error, wanted []error) bool {
	for _, want := range wanted {
		if errors.Is(err, want) {
			return true
		}
	}
	return false
}

// namespaces are those that a confined program must not share with the machine.
var namespaces = []string{"pid", "net"}

// Namespaces returns a text that identifies this program's namespaces of processes and of
// the network. Process ids do not: they are small in a container as well as in a sandbox.
func Namespaces() (string, error) {
	var all []string
	for _, kind := range namespaces {
		one, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return "", err
		}
		all = append(all, one)
	}
	return strings.Join(all, " "), nil
}

func seeOutside(outside string) error {
	inside, err := Namespaces()
	if err != nil {
		return err
	}
	for _, one := range strings.Fields(inside) {
		if strings.Contains(outside, one) {
			return nil
		}
	}
	return unix.ESRCH
}

func openSocket(family int) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// LandlockArgument is like ProbeArgument, for a confinement by Landlock alone. Only a
// directory follows, in which nothing is writable.
const LandlockArgument = "@sandbox-probe-landlock"

func runLandlockProbe(dir string) {
	fd, err := unix.Open(path.Join(dir, "outside"), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		_ = unix.Close(fd)
	}
	if !errors.Is(err, unix.EACCES) || !errors.Is(openSocket(unix.AF_INET), unix.EPERM) {
		_, _ = os.Stdout.WriteString("it does not keep a program from writing a file or opening a socket")
		syscall.Exit(1)
	}
	syscall.Exit(0)
}
