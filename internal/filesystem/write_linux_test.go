package filesystem_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/filesystem"
	"execserver/internal/testkit"
)

func write(path, data string) error {
	return filesystem.WriteFile(context.Background(), path, []byte(data), filesystem.WriteOptions{})
}

// TestSystemWriteReachesOtherMounts writes a file that is mounted by itself elsewhere, as into a
// container, and that another program has open.
func TestSystemWriteReachesOtherMounts(t *testing.T) {
	dir := t.TempDir()
	file := put(t, dir+"/f", "old")
	elsewhere := put(t, t.TempDir()+"/g", "")
	mount(t, file, elsewhere, "", unix.MS_BIND, "")
	reader, err := os.Open(file)
	ok(t, "open", err)
	defer reader.Close()
	ok(t, "write", write(file, "the new content"))
	if got := content(t, elsewhere); got != "the new content" {
		t.Errorf("the mount shows %q", got)
	}
	if data, err := io.ReadAll(reader); err != nil || string(data) != "the new content" {
		t.Errorf("an open file reads %q, %v", data, err)
	}
	leftovers(t, dir, "f")
}

// TestWriteRunningProgram replaces a file that the kernel does not let anybody write.
func TestWriteRunningProgram(t *testing.T) {
	file := runningProgram(t)
	ok(t, "setxattr", unix.Setxattr(file, "user.test", []byte("value"), 0))
	ok(t, "chmod", os.Chmod(file, 0o751))
	before := stat(t, file)
	replaced := 0
	ok(t, "write", filesystem.WriteFile(context.Background(), file, []byte("new"), filesystem.WriteOptions{Replaced: func() { replaced++ }}))
	if replaced != 1 {
		t.Errorf("Replaced was called %d times", replaced)
	}
	after := stat(t, file)
	if after.Ino == before.Ino || after.Mode != before.Mode || after.Uid != before.Uid || after.Gid != before.Gid {
		t.Errorf("%+v, was %+v", after, before)
	}
	if got := content(t, file); got != "new" || !hasAttribute(t, file, "user.test") {
		t.Errorf("%q, attribute kept: %v", got, hasAttribute(t, file, "user.test"))
	}
	leftovers(t, filepath.Dir(file), filepath.Base(file))
}

// TestReplace checks that a file that is to be replaced is another one afterwards, with
// everything but the content.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	replaced := 0
	replace := filesystem.WriteOptions{Replace: true, Replaced: func() { replaced++ }}
	write := func(path, data string) error {
		return filesystem.WriteFile(context.Background(), path, []byte(data), replace)
	}
	file := dir + "/f"
	ok(t, "write", write(file, "old"))
	if replaced != 0 {
		t.Error("a new file has replaced something")
	}
	ok(t, "setxattr", unix.Setxattr(file, "user.test", []byte("value"), 0))
	if os.Geteuid() == 0 {
		ok(t, "chown", os.Chown(file, 1234, 5678))
	}
	ok(t, "chmod", os.Chmod(file, 0o640))
	ok(t, "link", os.Link(file, dir+"/other"))
	symlink(t, "f", dir+"/link")
	reader, err := os.Open(file)
	ok(t, "open", err)
	defer reader.Close()
	before := stat(t, file)
	ok(t, "write", write(dir+"/link", "the new content"))
	after := stat(t, file)
	if after.Ino == before.Ino || after.Mode != before.Mode || after.Uid != before.Uid || after.Gid != before.Gid || !hasAttribute(t, file, "user.test") {
		t.Errorf("%+v, was %+v", after, before)
	}
	if old, err := io.ReadAll(reader); content(t, file) != "the new content" || content(t, dir+"/other") != "old" || string(old) != "old" || err != nil {
		t.Errorf("the file holds %q, its other name %q; who has it open reads %q, %v", content(t, file), content(t, dir+"/other"), old, err)
	}
	if text, err := os.Readlink(dir + "/link"); text != "f" || replaced != 1 {
		t.Errorf("the link is %q, %v; Replaced was called %d times", text, err, replaced)
	}

	mode := fs.FileMode(0o600)
	options := replace
	options.Mode, options.ExpectedSHA256 = &mode, sha("the new content")
	ok(t, "write", filesystem.WriteFile(context.Background(), file, []byte("newer"), options))
	if got := stat(t, file).Mode & 0o7777; got != 0o600 || content(t, file) != "newer" {
		t.Errorf("mode %o, content %q", got, content(t, file))
	}
	err = filesystem.WriteFile(context.Background(), file, []byte("late"), options)
	if _, changed := errors.AsType[*filesystem.ChangedError](err); !changed || content(t, file) != "newer" {
		t.Errorf("content %q, %v", content(t, file), err)
	}

	running := runningProgram(t)
	ok(t, "link", os.Link(running, dir+"/program"))
	ok(t, "write", write(dir+"/program", "new"))
	if got := content(t, dir+"/program"); got != "new" {
		t.Errorf("the program holds %d bytes", len(got))
	}
	wantError(t, "device", write("/dev/null", "x"), filesystem.InvalidInput, "path is not a regular file")
	leftovers(t, dir, "f", "link", "other", "program")
}

// TestSystemReplaceChangesNothing replaces files where that is not possible.
func TestSystemReplaceChangesNothing(t *testing.T) {
	testkit.System(t, testkit.Root)
	write := func(path string, size int) error {
		return filesystem.WriteFile(context.Background(), path, make([]byte, size), filesystem.WriteOptions{Replace: true, Replaced: func() { t.Error("replaced") }})
	}
	const keeps = "; the file keeps its old content"
	check := func(what, dir string, err error, kind filesystem.Kind, text string) {
		t.Helper()
		wantError(t, what, err, kind, text)
		if got := content(t, dir+"/f"); got != "precious" {
			t.Errorf("%s: the file holds %d bytes", what, len(got))
		}
		leftovers(t, dir, "f")
	}
	asSomebody := func(path string) (err error) {
		asNobody(t, func() { err = write(path, 3) })
		return err
	}
	dir := sharedDir(t)
	file := put(t, dir+"/f", "precious")
	ok(t, "chmod", os.Chmod(file, 0o666))
	check("directory", dir, asSomebody(file), filesystem.InvalidInput, "permission denied (os error 13)"+keeps)
	ok(t, "chmod", os.Chmod(dir, 0o777))
	check("owner", dir, asSomebody(file), filesystem.InvalidInput, "operation not permitted (os error 1)"+keeps)
	ok(t, "chmod", os.Chmod(file, 0o644))
	check("read-only file", dir, asSomebody(file), filesystem.InvalidInput, "permission denied (os error 13)")

	full := mountTmpfs(t, "size=64k")
	put(t, full+"/f", "precious")
	check("full disk", full, write(full+"/f", 200_000), filesystem.Other, "no space left on device (os error 28)"+keeps)

	below := t.TempDir()
	put(t, below+"/f", "below")
	mount(t, file, below+"/f", "", unix.MS_BIND, "")
	check("mount point", below, write(below+"/f", 3), filesystem.Other, "device or resource busy (os error 16)"+keeps)
}

func TestWriteKeepsInodeAndAttributes(t *testing.T) {
	dir := t.TempDir()
	file := put(t, dir+"/f", "old")
	ok(t, "setxattr", unix.Setxattr(file, "user.test", []byte("value"), 0))
	if os.Geteuid() == 0 {
		ok(t, "chown", os.Chown(file, 1234, 5678))
	}
	ok(t, "chmod", unix.Chmod(file, 0o4751))
	before := stat(t, file)
	ok(t, "write", write(file, "new"))
	after := stat(t, file)
	if after.Ino != before.Ino {
		t.Error("not the same file any more")
	}
	if os.Geteuid() != 0 {
		before.Mode &^= unix.S_ISUID
	}
	if after.Mode != before.Mode || after.Uid != before.Uid || after.Gid != before.Gid {
		t.Errorf("mode %o owner %d:%d, want %o %d:%d", after.Mode, after.Uid, after.Gid, before.Mode, before.Uid, before.Gid)
	}
	value := make([]byte, 10)
	if n, err := unix.Getxattr(file, "user.test", value); err != nil || string(value[:n]) != "value" {
		t.Errorf("attribute: %q, %v", value[:max(n, 0)], err)
	}

	mode := fs.FileMode(0o640) | fs.ModeSetgid
	for _, path := range []string{file, dir + "/new"} {
		ok(t, "write", filesystem.WriteFile(context.Background(), path, nil, filesystem.WriteOptions{Mode: &mode}))
		if got := stat(t, path).Mode & 0o7777; got != 0o2640 {
			t.Errorf("%s: mode %o", path, got)
		}
	}
	mask := unix.Umask(0o027)
	err := write(dir+"/masked", "")
	unix.Umask(mask)
	ok(t, "write", err)
	if got := stat(t, dir+"/masked").Mode & 0o7777; got != 0o640 {
		t.Errorf("new file: mode %o", got)
	}
	leftovers(t, dir, "f", "masked", "new")
}

// TestSystemWriteInPlace checks that WriteFile writes in place where it could do nothing else.
func TestSystemWriteInPlace(t *testing.T) {
	check := func(t *testing.T, file string) {
		t.Helper()
		for _, data := range []string{"something much longer than before", "short", ""} {
			before := stat(t, file)
			ok(t, "write", write(file, data))
			if got := content(t, file); got != data {
				t.Errorf("holds %q, want %q", got, data)
			}
			if after := stat(t, file); after.Ino != before.Ino || after.Nlink != before.Nlink || after.Uid != before.Uid || after.Mode != before.Mode {
				t.Errorf("not the same file any more: %+v, was %+v", after, before)
			}
		}
	}
	t.Run("hard links", func(t *testing.T) {
		dir := t.TempDir()
		file := put(t, dir+"/f", "old")
		ok(t, "link", os.Link(file, dir+"/g"))
		check(t, file)
		leftovers(t, dir, "f", "g")
	})
	t.Run("mount point", func(t *testing.T) {
		dir := t.TempDir()
		file := put(t, dir+"/f", "below")
		mount(t, put(t, t.TempDir()+"/g", "old"), file, "", unix.MS_BIND, "")
		check(t, file)
		leftovers(t, dir, "f")
	})
	t.Run("directory not writable", func(t *testing.T) {
		testkit.System(t, testkit.Root)
		dir := sharedDir(t)
		file := put(t, dir+"/f", "old")
		ok(t, "chmod", os.Chmod(file, 0o666))
		asNobody(t, func() { check(t, file) })
		leftovers(t, dir, "f")
	})
	t.Run("owner that cannot be kept", func(t *testing.T) {
		testkit.System(t, testkit.Root)
		dir := sharedDir(t)
		ok(t, "chmod", os.Chmod(dir, 0o777))
		file := put(t, dir+"/f", "old")
		ok(t, "chmod", os.Chmod(file, 0o666))
		asNobody(t, func() { check(t, file) })
		leftovers(t, dir, "f")
	})
	t.Run("sticky directory", func(t *testing.T) {
		testkit.System(t, testkit.Root)
		dir := sharedDir(t)
		ok(t, "chmod", unix.Chmod(dir, 0o1777))
		file := put(t, dir+"/f", "old")
		ok(t, "chmod", os.Chmod(file, 0o666))
		asNobody(t, func() { check(t, file) })
		leftovers(t, dir, "f")
	})
	t.Run("link that is no path", func(t *testing.T) {
		f, err := os.Create(t.TempDir() + "/f")
		ok(t, "create", err)
		defer f.Close()
		ok(t, "remove", os.Remove(f.Name()))
		link := symlink(t, "/proc/self/fd/"+itoa(int(f.Fd())), t.TempDir()+"/stdout")
		ok(t, "write", write(link, "to a file without a name"))
		data := make([]byte, 100)
		if n, _ := f.ReadAt(data, 0); string(data[:n]) != "to a file without a name" {
			t.Errorf("holds %q", data[:n])
		}
	})
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + itoa(n%10)
}

func TestSystemFullDisk(t *testing.T) {
	ctx := context.Background()
	dir := mountTmpfs(t, "size=64k")
	big := make([]byte, 200_000)
	const full = "no space left on device (os error 28)"

	file := put(t, dir+"/f", "precious")
	err := filesystem.WriteFile(ctx, file, big, filesystem.WriteOptions{})
	wantError(t, "write", err, filesystem.Other, full+"; the file keeps its old content")
	if e, is := errors.AsType[*filesystem.WriteError](err); !is || !e.Unchanged || e.Partial {
		t.Errorf("error = %#v", err)
	}
	ok(t, "link", os.Link(file, dir+"/g"))
	err = filesystem.WriteFile(ctx, file, big, filesystem.WriteOptions{})
	wantError(t, "write in place", err, filesystem.Other, full+"; the file keeps its old content")
	if got := content(t, file); got != "precious" {
		t.Errorf("file holds %d bytes", len(got))
	}
	source := put(t, t.TempDir()+"/big", string(big))
	err = filesystem.Copy(ctx, source, file, filesystem.CopyOptions{})
	wantError(t, "copy", err, filesystem.Other, full+"; the file keeps its old content")
	wantError(t, "new file", filesystem.WriteFile(ctx, dir+"/h", big, filesystem.WriteOptions{}), filesystem.Other, full)
	leftovers(t, dir, "f", "g")
	if got := content(t, file); got != "precious" {
		t.Errorf("file holds %d bytes", len(got))
	}
	// The failed write has released its room.
	ok(t, "write", filesystem.WriteFile(ctx, file, big[:40_000], filesystem.WriteOptions{}))
}

func TestCancelledWriteLeavesTheFile(t *testing.T) {
	dir := t.TempDir()
	file := put(t, dir+"/f", "old")
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(time.Millisecond, cancel)
	var err error
	for err == nil {
		err = filesystem.WriteFile(ctx, file, make([]byte, 64<<20), filesystem.WriteOptions{})
	}
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if got := len(content(t, file)); got != 3 && got != 64<<20 {
		t.Errorf("file holds %d bytes", got)
	}
	leftovers(t, dir, "f")
}

func TestSystemWriteWithoutPermission(t *testing.T) {
	testkit.System(t, testkit.Root)
	// The directory allows replacing a read-only file, but that would be wrong.
	dir := sharedDir(t)
	ok(t, "chmod", os.Chmod(dir, 0o777))
	file := put(t, dir+"/f", "old")
	asNobody(t, func() {
		wantError(t, "write", write(file, "new"), filesystem.InvalidInput, "permission denied (os error 13)")
	})
	ok(t, "chmod", os.Chmod(dir, 0o755))
	asNobody(t, func() {
		wantError(t, "create", write(dir+"/g", "new"), filesystem.InvalidInput, "permission denied (os error 13)")
	})
	leftovers(t, dir, "f")
}

func TestWritePseudoFile(t *testing.T) {
	const name = "/proc/self/comm"
	old := content(t, name)
	defer write(name, strings.TrimSpace(old))
	ok(t, "write", write(name, "renamed"))
	if got := content(t, name); got != "renamed\n" {
		t.Errorf("holds %q", got)
	}
}

// TestSystemWriteOnOtherFileSystems imitates file systems that support neither files without
// names nor the flags of rename.
func TestSystemWriteOnOtherFileSystems(t *testing.T) {
	for _, kind := range []string{"tmpfs", "ramfs"} {
		t.Run(kind, func(t *testing.T) {
			dir := mkdir(t, t.TempDir()+"/mnt")
			mount(t, kind, dir, kind, 0, "")
			for _, data := range []string{"new", "replaced"} {
				ok(t, "write", write(dir+"/f", data))
				if got := content(t, dir+"/f"); got != data {
					t.Errorf("holds %q", got)
				}
			}
			leftovers(t, dir, "f")
		})
	}
	for name, cripple := range map[string]func(*testing.T){
		"without O_TMPFILE":                 filesystem.NamedTemporaries,
		"without links and flags of rename": filesystem.PoorFileSystem,
	} {
		t.Run(name, func(t *testing.T) {
			cripple(t)
			dir := t.TempDir()
			for _, data := range []string{"new", "replaced"} {
				ok(t, "write", write(dir+"/f", data))
				if got := content(t, dir+"/f"); got != data {
					t.Errorf("holds %q", got)
				}
			}
			if stat(t, dir+"/f").Mode&0o777 != 0o644 {
				t.Errorf("mode %o", stat(t, dir+"/f").Mode)
			}
			err := filesystem.WriteFile(ctxDone(context.Background()), dir+"/g", []byte("x"), filesystem.WriteOptions{})
			if err == nil {
				t.Error("written although the context had ended")
			}
			full := mountTmpfs(t, "size=64k")
			err = filesystem.WriteFile(context.Background(), full+"/f", make([]byte, 200_000), filesystem.WriteOptions{})
			wantError(t, "full disk", err, filesystem.Other, "no space left on device (os error 28)")
			leftovers(t, full)
			leftovers(t, dir, "f")
		})
	}
	t.Run("overlay", func(t *testing.T) {
		base := t.TempDir()
		mount(t, "tmpfs", base, "tmpfs", 0, "")
		for _, name := range []string{"upper", "work", "mnt"} {
			mkdir(t, base+"/"+name)
		}
		put(t, base+"/lower/f", "lower")
		mount(t, "overlay", base+"/mnt", "overlay", 0, "lowerdir="+base+"/lower,upperdir="+base+"/upper,workdir="+base+"/work")
		ok(t, "write", write(base+"/mnt/f", "upper"))
		ok(t, "write", write(base+"/mnt/g", "new"))
		if f, g := content(t, base+"/mnt/f"), content(t, base+"/mnt/g"); f != "upper" || g != "new" {
			t.Errorf("holds %q, %q", f, g)
		}
		leftovers(t, base+"/mnt", "f", "g")
	})
}

// TestWriteHidesContent checks that a new file has no more permissions while it is written
// than it will have.
func TestWriteHidesContent(t *testing.T) {
	filesystem.PoorFileSystem(t)
	file, mode := t.TempDir()+"/f", fs.FileMode(0o600)
	ok(t, "write", filesystem.WriteFile(context.Background(), file, []byte("secret"), filesystem.WriteOptions{Mode: &mode, InPlace: func() func() {
		if info, err := os.Stat(file); err != nil || info.Mode() != mode {
			t.Errorf("before the first byte the file has the mode %v, %v", info.Mode(), err)
		}
		return func() {}
	}}))
}

// accessList encodes an access list that grants one more user everything.
func accessList() []byte {
	list := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{0x01, 7, ^uint32(0)}, {0x02, 7, 1234}, {0x04, 5, ^uint32(0)}, {0x10, 7, ^uint32(0)}, {0x20, 5, ^uint32(0)}} {
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.perm)
		list = binary.LittleEndian.AppendUint32(list, e.id)
	}
	return list
}

func hasAttribute(t *testing.T, path, name string) bool {
	t.Helper()
	_, err := unix.Getxattr(path, name, make([]byte, 1000))
	if err != nil && err != unix.ENODATA {
		t.Fatal(err)
	}
	return err == nil
}

func TestWriteKeepsAccessLists(t *testing.T) {
	const access = "system.posix_acl_access"
	dir := t.TempDir()
	with, without := put(t, dir+"/with", "old"), put(t, dir+"/without", "old")
	if err := unix.Setxattr(with, access, accessList(), 0); err != nil {
		t.Skip("no access lists here: ", err)
	}
	ok(t, "default list", unix.Setxattr(dir, "system.posix_acl_default", accessList(), 0))
	for _, path := range []string{with, without} {
		before := stat(t, path)
		ok(t, "write", write(path, "new"))
		after := stat(t, path)
		if after.Ino != before.Ino || after.Mode != before.Mode {
			t.Errorf("%s: mode %o, was %o; same inode %v", path, after.Mode, before.Mode, after.Ino == before.Ino)
		}
	}
	if !hasAttribute(t, with, access) || hasAttribute(t, without, access) {
		t.Errorf("lists: %v %v, want true false", hasAttribute(t, with, access), hasAttribute(t, without, access))
	}
	ok(t, "write", write(dir+"/new", ""))
	if !hasAttribute(t, dir+"/new", access) {
		t.Error("a new file did not get the list of its directory")
	}
}

// TestWriteDropsCapabilities checks that new content does not inherit the privileges of
// the program that it replaces.
func TestWriteDropsCapabilities(t *testing.T) {
	const capability = "security.capability"
	file := put(t, t.TempDir()+"/f", "old")
	value := make([]byte, 20)
	binary.LittleEndian.PutUint32(value, 0x02000001)
	binary.LittleEndian.PutUint32(value[4:], 1<<10)
	if err := unix.Setxattr(file, capability, value, 0); err != nil {
		t.Skip("may not give capabilities here: ", err)
	}
	ok(t, "write", write(file, "new"))
	if hasAttribute(t, file, capability) {
		t.Error("the new content has the capabilities of the old one")
	}
}

// TestLateWrite has a slow write go on while another connection of the client writes the same
// file: what was answered last stays.
func TestLateWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	begun, goOn, first, second := make(chan bool), make(chan bool), make(chan error, 1), make(chan error, 1)
	go func() {
		first <- filesystem.WriteFile(t.Context(), path, []byte(strings.Repeat("late", 1000)), filesystem.WriteOptions{InPlace: func() func() {
			close(begun)
			<-goOn
			return func() {}
		}})
	}()
	<-begun
	go func() { second <- filesystem.WriteFile(t.Context(), path, []byte("new"), filesystem.WriteOptions{}) }()
	testkit.WaitFor(t, testkit.Patience, func() error {
		if n := filesystem.Writers(); n < 2 && len(second) == 0 {
			return fmt.Errorf("%d writers", n)
		}
		return nil
	})
	close(goOn)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := <-second; err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); string(got) != "new" {
		t.Errorf("the file has %.10q, %v", got, err)
	}
}

// TestAppendedDuringAFailedWrite appends to a file while a write has reserved space for it, which
// then does not begin.
func TestAppendedDuringAFailedWrite(t *testing.T) {
	file := put(t, t.TempDir()+"/f", "old")
	ctx, cancel := context.WithCancel(t.Context())
	err := filesystem.WriteFile(ctx, file, make([]byte, 1<<20), filesystem.WriteOptions{InPlace: func() func() {
		f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
		ok(t, "open", err)
		_, err = f.WriteString(" and new")
		ok(t, "append", errors.Join(err, f.Close()))
		cancel()
		return func() {}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the write ends with %v", err)
	}
	if got := content(t, file); got != "old and new" {
		t.Errorf("the file holds %q", got)
	}
}
