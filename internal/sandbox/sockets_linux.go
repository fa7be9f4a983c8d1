package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"execserver/internal/procfs"
	"execserver/internal/sandbox/launcher"
	"execserver/protocol"
)

// An allowed network means other machines and the ports of this one, but not the sockets
// in the file system: through the socket of a terminal multiplexer, a key agent or a
// container engine a program can run commands outside. Nothing keeps a program from
// connecting to a socket whose name it reaches. So the server makes the directories in
// which such sockets live hollow: they hold only what is named here or by the policy,
// whatever other programs create there meanwhile. It hides listening sockets elsewhere
// one by one.

// nameServices resolve the names of machines and users, and of programs in /run.
var nameServices = []string{
	"/etc/resolv.conf", "/run/systemd/resolve/io.systemd.Resolve", "/run/nscd/socket", "/run/avahi-daemon/socket",
	"/run/current-system", "/run/booted-system", "/run/opengl-driver", "/run/wrappers",
}

// hideSockets hides the sockets of other programs, except the allowed ones.
func (r *resolver) hideSockets(allowed []string) {
	access := make(map[string]protocol.Access)
	var keep []string // real paths
	for _, path := range slices.Concat(nameServices, allowed) {
		w := r.walk(path)
		if w.err != nil || w.missing || w.crossed != "" {
			continue
		}
		keep = append(keep, w.real)
		access[w.real] = r.access(w.real)
		r.links = append(r.links, w.links...)
	}
	for _, dir := range socketDirectories() {
		r.hollow(dir)
	}
	r.hollowTemporary()
	for _, path := range listeningSockets() {
		r.hideSocket(path, keep)
	}
	for _, path := range keep {
		if r.nearest(path).hollow && access[path] != 0 && access[path] != protocol.AccessDeny {
			r.add(path, protocol.AccessRead)
		}
	}
}

// hollow makes a directory hollow, unless the policy has an entry for it.
func (r *resolver) hollow(dir string) {
	w := r.walk(dir)
	if w.err != nil || w.missing || w.crossed != "" || w.real == "/" || !isDir(w.real) || r.has(w.real) {
		return
	}
	r.rules = append(r.rules, rule{path: w.real, hollow: true, optional: true})
}

// socketDirectories returns directories that hold sockets and little else.
func socketDirectories() []string {
	dirs := []string{"/run", "/var/run"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && isPrivate(dir) {
		dirs = append(dirs, dir)
	}
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		for _, name := range []string{".gnupg", ".ssh/agent", ".docker/run", ".docker/desktop", ".1password", ".screen"} {
			dirs = append(dirs, filepath.Join(home, name))
		}
	}
	return dirs
}

// isPrivate reports whether only this user may use a directory.
func isPrivate(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir() && info.Mode().Perm()&0o077 == 0 && isOwn(info)
}

// hollowTemporary makes the directories hollow that programs create for their sockets among
// temporary files. It creates that of tmux before tmux does.
func (r *resolver) hollowTemporary() {
	uid := os.Geteuid()
	names := []string{fmt.Sprint("tmux-", uid), fmt.Sprint("emacs", uid), fmt.Sprint("zellij-", uid), "screens", ".X11-unix", ".ICE-unix"}
	if u, err := user.Current(); err == nil && u.Username != "" {
		names = append(names, "nvim."+u.Username)
	}
	if w := r.walk("/tmp"); w.err == nil && !w.missing && r.access(w.real) == protocol.AccessWrite {
		if _, err := exec.LookPath("tmux"); err == nil {
			_ = os.Mkdir(filepath.Join("/tmp", names[0]), 0o700) // it may exist
		}
	}
	for _, dir := range []string{"/tmp", "/var/tmp", os.TempDir()} {
		for _, name := range names {
			r.hollow(filepath.Join(dir, name))
		}
	}
}

// hideSocket hides a socket that is not in a writable directory. In a writable directory
// it hides a socket only in the directory of a known program.
func (r *resolver) hideSocket(path string, keep []string) {
	w := r.walk(path)
	if w.err != nil || w.missing || r.has(w.real) {
		return
	}
	if slices.ContainsFunc(keep, func(kept string) bool { return within(w.real, kept) }) {
		return
	}
	info, err := os.Lstat(w.real)
	if err != nil || info.Mode()&os.ModeSocket == 0 || unix.Faccessat(unix.AT_FDCWD, w.real, unix.W_OK, unix.AT_EACCESS) != nil {
		return // if this program cannot connect to it, no process inside can
	}
	around := r.nearest(w.real)
	switch {
	case around.access == 0, around.access == protocol.AccessDeny: // the policy hides it already
	case around.access == protocol.AccessRead, around.path == "/":
		r.rules = append(r.rules, rule{path: w.real, access: protocol.AccessDeny, optional: true})
	case isProgramDirectory(filepath.Base(filepath.Dir(w.real))):
		r.hollow(filepath.Dir(w.real))
	}
}

// isProgramDirectory reports whether a directory has the name of one that a known program
// creates for its sockets among temporary files.
func isProgramDirectory(name string) bool {
	return slices.ContainsFunc([]string{"tmux-", "ssh-", "emacs", "nvim.", "zellij-", "dbus-", "pulse-", "vscode-", ".X11-unix", ".ICE-unix"},
		func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// listeningSockets returns the paths of listening sockets: those of this network
// namespace, and those mounted from another one.
func listeningSockets() (paths []string) {
	text, _ := os.ReadFile("/proc/net/unix") // without it, no socket can be found
	for line := range strings.Lines(string(text)) {
		// Num RefCount Protocol Flags Type St Inode Path
		_, path, ok := strings.Cut(line, " /")
		fields := strings.Fields(line)
		if !ok || len(fields) < 8 {
			continue
		}
		flags, _ := strconv.ParseUint(fields[3], 16, 32)
		const accepts, datagrams = 1 << 16, "0002"
		if flags&accepts != 0 || fields[4] == datagrams {
			paths = append(paths, currentNames("/"+strings.TrimSuffix(path, "\n"))...)
		}
	}
	mounts, _ := procfs.Mounts()
	for _, m := range mounts {
		if strings.HasPrefix(m.Point, "/proc") || strings.HasPrefix(m.Point, "/sys") {
			continue
		}
		if info, err := os.Lstat(m.Point); err == nil && info.Mode()&os.ModeSocket != 0 {
			paths = append(paths, m.Point)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// currentNames returns the paths that a socket bound to path may have now. Some programs bind
// to a temporary name and rename the socket at once, as ssh does for its masters. The kernel
// reports only the first name.
func currentNames(path string) (paths []string) {
	if _, err := os.Lstat(path); err == nil {
		return []string{path}
	}
	entries, _ := os.ReadDir(filepath.Dir(path)) // if it cannot be read, nothing in it can be reached
	for _, entry := range entries {
		if entry.Type() == os.ModeSocket {
			paths = append(paths, filepath.Join(filepath.Dir(path), entry.Name()))
		}
	}
	return paths
}

// hollowLinks returns the links to create in hollow directories.
func (r *resolver) hollowLinks() (links []launcher.Link) {
	for _, link := range r.links {
		if r.nearest(link.Path).hollow && !slices.Contains(links, link) {
			links = append(links, link)
		}
	}
	return links
}
