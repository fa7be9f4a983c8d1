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

	"execserver/internal/sandbox/launcher"
	"execserver/protocol"
)

// A network that is allowed means other machines and the ports of this one, not
// the sockets in the file system: who connects to those of a terminal multiplexer,
// an agent for keys or a container engine has commands run outside. Nothing keeps
// a program from connecting to a socket whose name it reaches. So the directories
// in which such sockets live are hollow: there is nothing in them but what is
// named here or by the policy, whatever is made there meanwhile. Sockets that
// listen elsewhere are hidden one by one.

// nameServices are what names of machines and users are found by, and what
// programs are found by where they are in /run.
var nameServices = []string{
	"/etc/resolv.conf", "/run/systemd/resolve/io.systemd.Resolve", "/run/nscd/socket", "/run/avahi-daemon/socket",
	"/run/current-system", "/run/booted-system", "/run/opengl-driver", "/run/wrappers",
}

// hideSockets hides the sockets of other programs, but for those allowed.
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

// socketDirectories are where sockets live and little else.
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

// isPrivate reports whether a directory is this user's alone.
func isPrivate(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir() && info.Mode().Perm()&0o077 == 0 && isOwn(info)
}

// hollowTemporary makes those directories hollow that programs make for their
// sockets in a directory for temporary files, and that of tmux before tmux does.
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

// hideSocket hides a socket that is not in a directory that may be written, and
// there one whose directory is that of a known program.
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
		return // what this program cannot connect to, nobody inside can
	}
	around := r.nearest(w.real)
	switch {
	case around.access == 0, around.access == protocol.AccessDeny: // it is not there
	case around.access == protocol.AccessRead, around.path == "/":
		r.rules = append(r.rules, rule{path: w.real, access: protocol.AccessDeny, optional: true})
	case ofKnownProgram(filepath.Base(filepath.Dir(w.real))):
		r.hollow(filepath.Dir(w.real))
	}
}

// ofKnownProgram tells by the name of a directory for temporary files that a
// program has made it for its sockets.
func ofKnownProgram(name string) bool {
	return slices.ContainsFunc([]string{"tmux-", "ssh-", "emacs", "nvim.", "zellij-", "dbus-", "pulse-", "vscode-", ".X11-unix", ".ICE-unix"},
		func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// listeningSockets are the paths of the sockets that somebody listens at: those of
// this network namespace, and those that are mounted here from another one.
func listeningSockets() (paths []string) {
	text, _ := os.ReadFile("/proc/net/unix") // without it, there is nothing to be found
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
			paths = append(paths, nowCalled("/"+strings.TrimSuffix(path, "\n"))...)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 5 || strings.HasPrefix(fields[4], "/proc") || strings.HasPrefix(fields[4], "/sys") {
			continue
		}
		if info, err := os.Lstat(fields[4]); err == nil && info.Mode()&os.ModeSocket != 0 {
			paths = append(paths, fields[4])
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// nowCalled are the paths that a socket may have which was bound to one. Programs
// bind to a temporary name to give the socket its own at once, as ssh does for its
// masters. The kernel tells only the first.
func nowCalled(path string) (paths []string) {
	if _, err := os.Lstat(path); err == nil {
		return []string{path}
	}
	entries, _ := os.ReadDir(filepath.Dir(path)) // without it, nothing in there can be reached
	for _, entry := range entries {
		if entry.Type() == os.ModeSocket {
			paths = append(paths, filepath.Join(filepath.Dir(path), entry.Name()))
		}
	}
	return paths
}

// hollowLinks are the links to be made in what is hollow.
func (r *resolver) hollowLinks() (links []launcher.Link) {
	for _, link := range r.links {
		if r.nearest(link.Path).hollow && !slices.Contains(links, link) {
			links = append(links, link)
		}
	}
	return links
}
