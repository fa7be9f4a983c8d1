package filesystem_test

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

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
