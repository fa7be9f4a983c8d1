package launcher

import (
	"errors"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The launcher builds the new root directory on a tmpfs, which disappears with the old root.
// It mounts the tmpfs over /proc, which exists on every machine and which the launcher does
// not need.
const (
	scratch   = "/proc"
	newRoot   = scratch + "/root"
	emptyDir  = scratch + "/emptyDir"  // without permissions
	emptyFile = scratch + "/emptyFile" // without permissions
)

// tree is a detached copy of mounts.
type tree int

// confineFiles builds the view of the files that the Spec describes.
func (s *Spec) confineFiles() *failure {
	if s.Check {
		return s.checkMounts()
	}
	if s.Base == BaseNone {
		return nil
	}
	old := unix.Umask(0)
	defer unix.Umask(old)
	// Later mounts outside must not propagate into the sandbox: they could be writable.
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return &failure{"make the mounts private", err}
	}
	v := view{spec: s}
	for _, step := range []func() *failure{
		v.cloneAll, v.makeScratch, v.attachBase, v.makeDevices, v.attachSelf, v.attachMounts, v.attachProc, v.hideInProc, v.finish,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// view is the launcher's view of the files. It copies everything before it attaches
// anything, so that the mounts it checked are the mounts it uses.
type view struct {
	spec    *Spec
	base    tree
	trees   []tree // of spec.Mounts; -1: hidden or left out
	hollows []int  // descriptors of hollow directories, writable until everything is in place
	devices map[string]tree
	console tree // the command's terminal; -1 if none
	self    tree // this program; -1 if it is not the command
	sys     tree // -1 if not needed
	proc    tree // the machine's; -1 if none
	root    int  // the new root directory
}

func (v *view) cloneAll() *failure {
	s := v.spec
	for _, m := range s.Mounts {
		t := tree(-1)
		if m.Kind != MountHidden && m.Kind != MountHollow {
			var err error
			if t, err = cloneChecked(m); err != nil && m.Optional {
				t = -1
			} else if err != nil {
				return &failure{"take hold of " + m.Path, changed(err)}
			}
		}
		v.trees = append(v.trees, t)
	}
	v.devices = make(map[string]tree)
	for _, name := range deviceNames {
		t, err := clone("/dev/"+name, deviceAttributes)
		if err == unix.ENOENT {
			continue
		}
		if err != nil {
			return &failure{"take hold of /dev/" + name, err}
		}
		v.devices[name] = t
	}
	v.console, v.self = -1, -1
	if s.Program == Self {
		v.self = cloneSelf()
	}
	v.console = cloneTerminal()
	var err error
	v.sys, v.proc, v.base = -1, -1, -1
	switch s.Base {
	case BaseReadOnly:
		v.base, err = clone("/", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	case BaseWritable:
		if v.base, err = clone("/", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err == nil {
			v.sys, err = clone("/sys", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
			if err == unix.ENOENT {
				v.sys, err = -1, nil
			}
		}
	}
	if err != nil {
		return &failure{"take hold of the root directory", err}
	}
	if v.proc, err = clone("/proc", unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV); err != nil {
		return &failure{"take hold of /proc", err}
	}
	return nil
}

// clone copies the mounts at a path and below it, and adds attributes.
func clone(path string, attributes uint64) (tree, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	if attributes == 0 {
		return tree(fd), nil
	}
	return tree(fd), setAttributes(fd, attributes, unix.AT_RECURSIVE)
}

func setAttributes(fd int, attributes uint64, flags uint) error {
	return unix.MountSetattr(fd, "", flags|unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attributes})
}

var errChanged = errors.New("it is not what it was a moment ago")

// changed replaces an error that means errChanged with errChanged.
func changed(err error) error {
	if err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP {
		return errChanged
	}
	return err
}

func cloneChecked(m Mount) (tree, error) {
	attributes := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if m.Kind == MountReadOnly || m.Kind == MountLink {
		attributes |= unix.MOUNT_ATTR_RDONLY
	}
	t, err := clone(m.Path, attributes)
	if err != nil {
		return -1, err
	}
	if err := m.check(int(t)); err != nil {
		_ = unix.Close(int(t))
		return -1, err
	}
	return t, nil
}

// check compares the file of a descriptor with the file for which the mount was planned.
func (m Mount) check(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if uint64(st.Dev) != m.Device || st.Ino != m.Inode {
		return errChanged
	}
	return nil
}

func (v *view) makeScratch() *failure {
	if err := unix.Mount("tmpfs", scratch, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return &failure{"make room for the new root directory", err}
	}
	for _, err := range []error{unix.Mkdir(newRoot, 0o755), unix.Mkdir(emptyDir, 0), makeFile(unix.AT_FDCWD, emptyFile, 0)} {
		if err != nil {
			return &failure{"make room for the new root directory", err}
		}
	}
	return nil
}

func makeFile(dir int, name string, mode uint32) error {
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// attach attaches a tree to the file of a descriptor.
func (t tree) attach(target int) error {
	err := unix.MoveMount(int(t), "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	_ = unix.Close(int(t))
	return err
}

func (t tree) attachAt(path string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return t.attach(fd)
}

func (v *view) attachBase() *failure {
	var err error
	if v.spec.Base == BaseEmpty {
		err = unix.Mount("tmpfs", newRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755")
	} else {
		err = v.base.attachAt(newRoot)
	}
	if err == nil {
		v.root, err = unix.Open(newRoot, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return &failure{"make the new root directory", err}
	}
	if v.spec.Base != BaseEmpty {
		return nil
	}
	for _, dir := range []string{"dev", "proc"} {
		if err := unix.Mkdirat(v.root, dir, 0o755); err != nil {
			return &failure{"make /" + dir, err}
		}
	}
	return v.makeLinks()
}

func (v *view) makeLinks() *failure {
	for _, link := range v.spec.Links {
		dir, name := path.Split(link.Path)
		fd, err := v.openInRoot(dir, true)
		if err == nil {
			err = unix.Symlinkat(link.Target, fd, name)
			_ = unix.Close(fd)
		}
		if err != nil {
			return &failure{"make the link " + link.Path, err}
		}
	}
	return nil
}

func (v *view) attachMounts() *failure {
	if v.sys >= 0 {
		if err := v.sys.attachAt(newRoot + "/sys"); err != nil {
			return &failure{"protect /sys", err}
		}
	}
	for i, m := range v.spec.Mounts {
		if m.InProc() {
			continue // hidden when there is another /proc
		}
		if m.Optional && m.Kind == MountReadOnly && v.trees[i] < 0 {
			continue
		}
		err := v.attachMount(m, v.trees[i])
		if m.Optional && (m.Kind == MountReadOnly || err == unix.ENOENT) {
			continue // it may have disappeared
		}
		if err != nil {
			return &failure{"mount " + m.Path, changed(err)}
		}
	}
	if v.spec.Base != BaseEmpty {
		return v.makeLinks()
	}
	return nil
}

// hideInProc hides the denied files in the new /proc. Files that have disappeared need no
// mount.
func (v *view) hideInProc() *failure {
	for _, m := range v.spec.Mounts {
		if !m.InProc() {
			continue
		}
		if err := v.attachMount(m, -1); err != nil && err != unix.ENOENT {
			return &failure{"hide " + m.Path, err}
		}
	}
	return nil
}

// mustMatch reports whether the mount point must be the file for which the mount was planned.
// A socket that may have disappeared is hidden even if the path is another file by now. The
// same holds for hollow directories and for files in a new /proc.
func (m Mount) mustMatch() bool {
	return m.Kind != MountHollow && (m.Kind != MountHidden || !m.Optional && !m.InProc())
}

func (v *view) attachMount(m Mount, t tree) error {
	// The launcher creates mount points on its own file systems in memory.
	create := strings.HasPrefix(m.Path, "/dev/") || v.spec.inHollow(m.Path) ||
		v.spec.Base == BaseEmpty && m.Kind != MountHidden // a hidden path needs no mount point if nothing shows it
	target, err := v.openMountPoint(m, create && !m.InProc())
	if err != nil {
		return err
	}
	defer unix.Close(target)
	if m.Path == "/" {
		return nil // it is the root directory itself
	}
	if !create && m.mustMatch() {
		if err := m.check(target); err != nil {
			return err
		}
	}
	switch {
	case m.Kind == MountHollow:
		t, err = v.makeHollow()
	case m.Kind == MountHidden && m.Directory:
		t, err = clone(emptyDir, unix.MOUNT_ATTR_RDONLY)
	case m.Kind == MountHidden:
		t, err = clone(emptyFile, unix.MOUNT_ATTR_RDONLY)
	}
	if err != nil {
		return err
	}
	return t.attach(target)
}

// openMountPoint opens the mount point of m. It follows no link on the way, because a link
// created since the plan was made would lead elsewhere.
func (v *view) openMountPoint(m Mount, create bool) (int, error) {
	if m.Directory || !create {
		return v.openInRoot(m.Path, create)
	}
	dir, name := path.Split(m.Path)
	fd, err := v.openInRoot(dir, true)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	if err := makeFile(fd, name, 0o444); err != nil && err != unix.EEXIST {
		return -1, err
	}
	return unix.Openat(fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

func (v *view) openInRoot(name string, create bool) (int, error) {
	name = strings.Trim(name, "/")
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	if name == "" {
		return unix.Openat2(v.root, ".", &how)
	}
	if create {
		for i := range len(name) + 1 {
			if i < len(name) && name[i] != '/' {
				continue
			}
			err := unix.Mkdirat(v.root, name[:i], 0o755)
			if err != nil && err != unix.EEXIST && err != unix.EROFS {
				return -1, err
			}
		}
	}
	return unix.Openat2(v.root, name, &how)
}

// attachProc mounts a /proc of the new process namespace, in which the files that concern
// the whole machine are read-only.
func (v *view) attachProc() *failure {
	const proc = newRoot + "/proc"
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err := unix.Mount("proc", proc, "proc", flags, "")
	if err == unix.EPERM {
		// In a container that hides parts of /proc the kernel refuses a new one. Then the
		// command sees the processes in the machine's /proc, but has no rights over them,
		// because they belong to another user namespace.
		return attempt("mount /proc", v.proc.attachAt(proc))
	}
	if err != nil {
		return &failure{"mount /proc", err}
	}
	for _, name := range []string{"sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "mtrr"} {
		t, err := clone(proc+"/"+name, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
		if err == unix.ENOENT {
			continue
		}
		if err == nil {
			err = t.attachAt(proc + "/" + name)
		}
		if err != nil {
			return &failure{"protect /proc/" + name, err}
		}
	}
	return nil
}

// finish switches to the new root directory, and unmounts the old one.
func (v *view) finish() *failure {
	readOnly := []string{newRoot + "/dev"}
	if os.Geteuid() == 0 { // the mode of a file in /proc is the same in every /proc, and root can change it
		readOnly = append(readOnly, newRoot+"/proc")
	}
	if v.spec.Base == BaseEmpty {
		readOnly = append(readOnly, newRoot)
	}
	for _, path := range readOnly {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(unix.AT_FDCWD, path, 0, &attr); err != nil {
			return &failure{"protect " + strings.TrimPrefix(path, newRoot), err}
		}
	}
	for _, fd := range v.hollows {
		err := setAttributes(fd, unix.MOUNT_ATTR_RDONLY, 0)
		if err == unix.EINVAL {
			// Another program removed the directory, and the kernel unmounted the tmpfs. A
			// new directory of that name would show its sockets.
			err = errChanged
		}
		if err != nil {
			return &failure{"protect a hollow directory", err}
		}
		_ = unix.Close(fd)
	}
	if err := unix.Fchdir(v.root); err != nil {
		return &failure{"enter the new root directory", err}
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return &failure{"change the root directory", err}
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return &failure{"unmount the old root directory", err}
	}
	return attempt("enter the new root directory", unix.Chdir("/"))
}

// makeHollow creates the mount for a hollow directory.
func (v *view) makeHollow() (tree, error) {
	dir := scratch + "/hollow" + strconv.Itoa(len(v.hollows))
	if err := unix.Mkdir(dir, 0o755); err != nil {
		return -1, err
	}
	t, err := clone(dir, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return -1, err
	}
	fd, err := unix.FcntlInt(uintptr(t), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	v.hollows = append(v.hollows, fd)
	return t, nil
}

// inHollow reports whether a path is in a hollow directory, where its mount point must be
// created.
func (s *Spec) inHollow(path string) bool {
	for _, m := range s.Mounts {
		if m.Kind == MountHollow && strings.HasPrefix(path, m.Path+"/") {
			return true
		}
	}
	return false
}

// checkMounts checks that the mounts made by another program are those of the plan.
func (s *Spec) checkMounts() *failure {
	for _, m := range s.Mounts {
		if m.Kind == MountHidden || m.Kind == MountHollow || m.Optional {
			continue
		}
		fd, err := unix.Open(m.Path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return &failure{"look at " + m.Path, changed(err)}
		}
		err = m.check(fd)
		var fs unix.Statfs_t
		if err == nil {
			err = unix.Fstatfs(fd, &fs)
		}
		_ = unix.Close(fd)
		if err == nil && m.Kind == MountReadOnly && fs.Flags&unix.ST_RDONLY == 0 {
			err = errors.New("it can be written, flags " + strconv.FormatInt(fs.Flags, 16))
		}
		if err != nil {
			return &failure{"check " + m.Path, err}
		}
	}
	return protectDevices()
}
