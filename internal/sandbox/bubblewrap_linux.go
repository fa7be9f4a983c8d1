package sandbox

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"execserver/internal/sandbox/launcher"
)

// bubblewrap starts the command through bubblewrap, which makes the mounts and then
// executes this program as a launcher. The launcher checks the mounts and does the rest.
func (c *Confinement) bubblewrap(l *Launch) error {
	program := c.engine.opts.Bubblewrap
	if program == "" {
		found, err := exec.LookPath("bwrap")
		if err != nil {
			return errors.New("there is no program bwrap")
		}
		if program, err = filepath.Abs(found); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	options, err := c.bubblewrapOptions(self, l)
	if err != nil {
		return err
	}
	file, err := memoryFile([]byte(strings.Join(options, "\x00") + "\x00"))
	if err != nil {
		return err
	}
	l.Files = append(l.Files, file)
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	fd := strconv.Itoa(2 + len(l.Files))
	l.wrapped = true
	l.Path, l.Args = program, []string{"bwrap", "--args", fd, "--", launcher.SelfInside, launcher.Argument}
	return nil
}

func isGone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

func (c *Confinement) bubblewrapOptions(self string, l *Launch) ([]string, error) {
	options := []string{
		"--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--as-pid-1",
		"--cap-drop", "ALL", "--clearenv",
	}
	add := func(more ...string) { options = append(options, more...) }
	if os.Geteuid() == 0 { // root owns the nodes in /dev, which the launcher then protects
		add("--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP")
	}
	if !c.plan.network {
		add("--unshare-net")
	}
	switch c.plan.base {
	case launcher.BaseReadOnly:
		add("--ro-bind", "/", "/")
	case launcher.BaseWritable:
		add("--bind", "/", "/", "--ro-bind", "/sys", "/sys")
	}
	symlinks := func() {
		for _, link := range c.plan.links {
			add("--symlink", link.Target, link.Path)
		}
	}
	if c.plan.base == launcher.BaseEmpty {
		symlinks()
	}
	add("--dev", "/dev")
	var sockets, hollows []string
	for _, m := range c.plan.mounts {
		if m.Optional && m.Kind == launcher.MountHidden {
			sockets = append(sockets, m.Path)
		}
	}
	closed := outOfReach(sockets)
	attach := func(inProc bool) error {
		for _, m := range slices.Concat(c.plan.mounts, c.plan.kernel) {
			switch {
			case m.InProc() != inProc || closed[m.Path]:
			case m.Optional && m.Kind != launcher.MountReadOnly && isGone(m.Path): // bubblewrap requires that it exists
			case m.Optional && m.Kind == launcher.MountHidden: // a socket; connecting to a device is refused
				add("--ro-bind", os.DevNull, m.Path)
			case m.Kind == launcher.MountHollow:
				add("--perms", "0755", "--tmpfs", m.Path)
				hollows = append(hollows, m.Path)
			case m.Optional:
				add("--ro-bind-try", m.Path, m.Path)
			case m.Kind == launcher.MountReadOnly:
				add("--ro-bind", m.Path, m.Path)
			case m.Kind == launcher.MountWritable:
				add("--bind", m.Path, m.Path)
			case m.Directory:
				add("--perms", "0000", "--tmpfs", m.Path, "--remount-ro", m.Path)
			case inProc: // a device, which cannot be opened there
				add("--ro-bind", os.DevNull, m.Path)
			default:
				file, err := memoryFile(nil)
				if err != nil {
					return err
				}
				l.Files = append(l.Files, file)
				add("--perms", "0000", "--ro-bind-data", strconv.Itoa(2+len(l.Files)), m.Path)
			}
		}
		return nil
	}
	if err := attach(false); err != nil {
		return nil, err
	}
	if c.plan.base != launcher.BaseEmpty {
		symlinks()
	}
	for _, path := range hollows {
		add("--remount-ro", path)
	}
	add("--proc", "/proc")
	for _, name := range []string{"sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "mtrr"} {
		add("--ro-bind-try", "/proc/"+name, "/proc/"+name)
	}
	if err := attach(true); err != nil {
		return nil, err
	}
	add("--ro-bind", self, launcher.SelfInside, "--remount-ro", "/dev")
	if os.Geteuid() == 0 { // the mode of a file in /proc is the same in every /proc, and root can change it
		add("--remount-ro", "/proc")
	}
	if c.plan.base == launcher.BaseEmpty {
		add("--remount-ro", "/")
	}
	return options, nil
}
