package codex

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	execclient "execserver/client"
	"execserver/internal/testkit"
)

func init() { helpers["mounted"] = mounted }

const nobody = 65534

// mounted runs a command as nobody if user says so, after a mount of its own.
func mounted(args []string) {
	user, source, target, kind, options, command := args[0], args[1], args[2], args[3], args[4], args[5:]
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	if kind != "" {
		flags := uintptr(0)
		if kind == "bind" {
			flags = unix.MS_BIND
		}
		must(unix.Mount(source, target, kind, flags, options))
	}
	// nobody can run the program, but cannot find it.
	program, err := unix.Open(command[0], unix.O_PATH, 0)
	must(err)
	if user == "nobody" {
		must(syscall.Setgroups(nil))
		must(syscall.Setgid(nobody))
		must(syscall.Setuid(nobody))
	}
	must(syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", program), command, os.Environ()))
}

// A patching is what a client does to apply a patch: it writes, and it removes.
type patching struct {
	name      string
	nobody    bool   // the server is not root
	bind      bool   // f is a mount of t
	disk      string // the options of the tmpfs that the folder is, or "ramfs", which reserves no room
	prepare   func(folder string) error
	write     string // the file
	size      int    // of its content
	remove    string
	different bool // from the released server, and ours is right
	want      error
}

func patchings() []patching {
	put := func(name, content string, mode fs.FileMode, owner int) func(string) error {
		return func(dir string) error {
			path := filepath.Join(dir, name)
			return errors.Join(os.WriteFile(path, []byte(content), 0o600), os.Chown(path, owner, owner), os.Chmod(path, mode))
		}
	}
	link := func(text, name string) func(string) error {
		return func(dir string) error { return os.Symlink(text, filepath.Join(dir, name)) }
	}
	hard := func(dir string) error { return os.Link(dir+"/f", dir+"/g") }
	open := func(mode fs.FileMode) func(string) error {
		return func(dir string) error { return os.Chmod(dir, mode) }
	}
	attribute := func(dir string) error { return unix.Setxattr(dir+"/f", "user.test", []byte("value"), 0) }
	all := func(steps ...func(string) error) func(string) error {
		return func(dir string) error {
			for _, step := range steps {
				if err := step(dir); err != nil {
					return err
				}
			}
			return nil
		}
	}
	old := put("f", "old", 0o640, 1234)
	return []patching{
		{name: "add", write: "f", size: 9},
		{name: "add below nothing", write: "none/f", size: 9, want: fs.ErrNotExist},
		{name: "update", prepare: all(old, attribute), write: "f", size: 9},
		{name: "update by nothing", prepare: old, write: "f"},
		{name: "update by much", prepare: old, write: "f", size: 3 << 20},
		{name: "update a set-user-ID program", prepare: put("f", "old", fs.ModeSetuid|0o755, 0), write: "f", size: 9},
		{name: "update a set-user-ID program, not as root", nobody: true, prepare: put("f", "old", fs.ModeSetuid|fs.ModeSetgid|0o755, nobody), write: "f", size: 9},
		{name: "delete", prepare: old, remove: "f"},
		{name: "delete a directory", prepare: func(dir string) error { return os.Mkdir(dir+"/f", 0o755) }, remove: "f"},
		{name: "move", prepare: old, write: "g", size: 9, remove: "f"},
		{name: "move onto another file", prepare: all(old, put("g", "there", 0o600, 7)), write: "g", size: 9, remove: "f"},
		{name: "hard link", prepare: all(old, hard), write: "f", size: 9},
		{name: "delete a hard link", prepare: all(old, hard), remove: "f"},
		{name: "link", prepare: all(put("t", "old", 0o640, 7), link("t", "f")), write: "f", size: 9},
		{name: "link without a target", prepare: link("t", "f"), write: "f", size: 9},
		{name: "delete a link", prepare: all(put("t", "old", 0o640, 7), link("t", "f")), remove: "f"},
		{name: "move a link", prepare: all(put("t", "old", 0o640, 7), link("t", "f")), write: "g", size: 9, remove: "f"},
		{name: "read-only file", nobody: true, prepare: all(open(0o777), put("f", "old", 0o444, nobody)), write: "f", size: 9, want: fs.ErrPermission},
		{name: "delete a read-only file", nobody: true, prepare: all(open(0o777), put("f", "old", 0o444, nobody)), remove: "f"},
		{name: "file of somebody else", nobody: true, prepare: all(open(0o777), put("f", "old", 0o666, 7)), write: "f", size: 9},
		{name: "file that cannot be read", nobody: true, prepare: all(open(0o777), put("f", "old", 0o222, nobody)), write: "f", size: 9},
		{name: "read-only directory", nobody: true, prepare: put("f", "old", 0o666, 7), write: "f", size: 9},
		{name: "add in a read-only directory", nobody: true, write: "f", size: 9, want: fs.ErrPermission},
		{name: "delete in a read-only directory", nobody: true, prepare: put("f", "old", 0o666, 7), remove: "f", want: fs.ErrPermission},
		{name: "sticky directory", nobody: true, prepare: all(open(fs.ModeSticky|0o777), put("f", "old", 0o666, 7)), write: "f", size: 9},
		{name: "add in a directory of a group", prepare: all(func(dir string) error { return os.Chown(dir, 0, 7) }, open(fs.ModeSetgid|0o775)), write: "f", size: 9},
		{name: "mounted file", bind: true, prepare: all(old, put("t", "mounted", 0o640, 7)), write: "f", size: 9},
		{name: "file that is mounted elsewhere", bind: true, prepare: all(old, put("t", "mounted", 0o640, 7)), write: "t", size: 9},
		{name: "delete a mounted file", bind: true, prepare: all(old, put("t", "mounted", 0o640, 7)), remove: "f", want: syscall.EBUSY},
		{name: "full disk", disk: "size=64k", prepare: old, write: "f", size: 200_000, want: syscall.ENOSPC, different: true},
		{name: "add on a full disk", disk: "size=64k", write: "f", size: 200_000, want: syscall.ENOSPC, different: true},
		{name: "disk that is full but for the file", disk: "size=64k", prepare: put("f", strings.Repeat("o", 60_000), 0o640, 7), write: "f", size: 60_001},
		{name: "no room can be reserved", disk: "ramfs", prepare: old, write: "f", size: 200_000},
	}
}

// TestPatchesLeaveTheSameFiles compares what is in a folder after the requests of a patch, to
// the last byte, inode and attribute, with what the released server leaves there.
func TestPatchesLeaveTheSameFiles(t *testing.T) {
	released := testkit.Codex(t)
	testkit.System(t, testkit.Root)
	ours, err := buildServer()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range patchings() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			before, got := p.run(t, ours, "--listen", "stdio")
			_, theirs := p.run(t, released, "exec-server", "--listen", "stdio")
			want := theirs
			if p.different {
				want = before
			}
			if slices.Equal(got, theirs) == p.different || !slices.Equal(got, want) {
				t.Errorf("left\n%s\nwant\n%s\nthe released server left\n%s",
					strings.Join(got, "\n"), strings.Join(want, "\n"), strings.Join(theirs, "\n"))
			}
		})
	}
}

// run has a server carry out the requests, and describes the folder before and after them.
func (p *patching) run(t *testing.T, command ...string) (before, after []string) {
	t.Helper()
	folder, err := os.MkdirTemp("", "patched-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	user, mount, late := "root", []string{"", "", "", ""}, false
	if p.nobody {
		user = "nobody"
	}
	switch {
	case p.bind:
		mount = []string{folder + "/t", folder + "/f", "bind", ""}
	case p.disk == "ramfs":
		mount, late = []string{"ramfs", folder, "ramfs", "mode=755"}, true
	case p.disk != "":
		mount, late = []string{"tmpfs", folder, "tmpfs", "mode=755," + p.disk}, true
	}
	prepare := func(folder string) {
		if p.prepare != nil {
			if err := p.prepare(folder); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !late {
		prepare(folder)
	}
	server := exec.Command(os.Args[0], slices.Concat([]string{"mounted", user}, mount, command)...)
	server.Dir = "/"
	server.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	env, err := execclient.Launch(t.Context(), server, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer env.Close()
	seen := fmt.Sprintf("/proc/%d/root%s", server.Process.Pid, folder) // with the mount
	if late {
		prepare(seen)
	}
	inodes := map[uint64]string{}
	before = describe(t, seen, inodes)
	files := env.FS(folder)
	err = nil
	if p.write != "" {
		err = files.WriteFile(p.write, []byte(strings.Repeat("n", p.size)))
	}
	if err == nil && p.remove != "" {
		err = files.Remove(p.remove)
	}
	if !errors.Is(err, p.want) || p.want == nil && err != nil {
		t.Errorf("%s: %v, want %v", filepath.Base(command[0]), err, p.want)
	}
	return before, describe(t, seen, inodes)
}

// describe returns a line for each file of a folder. An inode is called by the name that it
// had at first.
func describe(t *testing.T, folder string, inodes map[uint64]string) (lines []string) {
	t.Helper()
	first := len(inodes) == 0
	err := filepath.WalkDir(folder+"/.", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		name := strings.TrimPrefix(path, folder)
		if _, ok := inodes[st.Ino]; first && !ok {
			inodes[st.Ino] = name
		}
		var content []byte
		attributes := make([]byte, 4096)
		n := 0
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			if content, err = os.ReadFile(path); err != nil {
				return err
			}
			if n, err = unix.Listxattr(path, attributes); err != nil && err != unix.ENOTSUP {
				return err
			}
		case unix.S_IFLNK:
			text, err := os.Readlink(path)
			if err != nil {
				return err
			}
			content = []byte(text)
		}
		was := inodes[st.Ino]
		if was == "" {
			was = "a new file"
		}
		lines = append(lines, fmt.Sprintf("%s: was %s, mode %o, links %d, owner %d:%d, attributes %q, %d bytes %.20q",
			name, was, st.Mode, st.Nlink, st.Uid, st.Gid, attributes[:max(n, 0)], len(content), content))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}
