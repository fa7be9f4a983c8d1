package sandbox_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"execserver/protocol"
)

// terabyte is the size of the huge file, which is sparse.
const terabyte = 1 << 40

// Ends of the errors of calls about special files.
const (
	works   = ""
	notFile = "is not a file"
	nobody  = "no such device or address (os error 6)"
	full    = "no space left on device (os error 28)"
	noLink  = "invalid argument (os error 22)"
	device  = ")" // EROFS, or EPERM for another user
	exists  = "file exists (os error 17)"
	notDir  = "not a directory (os error 20)"
	noCopy  = "only supports regular files, directories, and symlinks"
	large   = "limit is 50330624 bytes, size is 1099511627776 bytes"
)

// special files by name, in the order of what is wanted of them.
var specialFiles = []string{"fifo", "held", "zero", "full", "huge"}

// specialCalls are the requests and the outcome for each special file. The first six only
// read.
var specialCalls = []struct {
	method string
	more   object
	want   []string
}{
	{"fs/getMetadata", nil, []string{works, works, works, works, works}},
	{"fs/canonicalize", nil, []string{works, works, works, works, works}},
	{"fs/readDirectory", nil, []string{notDir, notDir, notDir, notDir, notDir}},
	{"fs/readFile", nil, []string{notFile, notFile, notFile, notFile, large}},
	{"fs/open", object{"handleId": "r"}, []string{notFile, notFile, notFile, notFile, works}},
	{"fs/readLink", nil, []string{noLink, works, works, works, noLink}},
	{"fs/copy", object{"copy": "from"}, []string{noCopy, noCopy, noCopy, noCopy, works}},
	{"fs/createDirectory", object{"recursive": true}, []string{exists, exists, exists, exists, exists}},
	{"fs/open", object{"handleId": "w", "mode": "replace"}, []string{nobody, notFile, notFile, notFile, works}},
	{"fs/open", object{"handleId": "u", "mode": "update"}, []string{nobody, notFile, notFile, notFile, works}},
	{"fs/setMetadata", object{"size": terabyte}, []string{notFile, notFile, notFile, notFile, works}},
	{"fs/setMetadata", object{"mode": 0o666, "modifiedAtMs": 1000}, []string{works, works, device, device, works}},
	{"fs/symlink", object{"target": "x"}, []string{exists, exists, exists, exists, exists}},
	{"fs/copy", object{"copy": "to"}, []string{notFile, notFile, works, full, works}},
	{"fs/writeFile", object{"dataBase64": "aGVsbG8="}, []string{notFile, notFile, works, full, works}},
	{"fs/remove", object{"recursive": true}, []string{works, works, works, works, works}},
}

// TestSpecialFiles calls the methods about files with FIFOs, devices and a huge file. None
// of the calls makes the server wait or grow (row 43).
func TestSpecialFiles(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		at := func(name string) string { return filepath.Join(m.ws, name) }
		for _, name := range []string{"fifo", "taken"} {
			m.must(syscall.Mkfifo(at(name), 0o666))
			m.own(at(name))
		}
		held, err := os.OpenFile(at("taken"), os.O_RDWR, 0) // what is written there would be taken
		m.must(err)
		defer held.Close()
		for name, target := range map[string]string{"held": "taken", "zero": "/dev/zero", "full": "/dev/full"} {
			m.must(os.Symlink(target, at(name)))
		}
		m.write(at("huge"), "")
		if err := os.Truncate(at("huge"), terabyte); err != nil {
			t.Skipf("the file system has no huge files: %v", err)
		}
		before := m.memory()
		minimal := m.policy("restricted", special("minimal", "read"), special("project_roots", "write"))
		m.special(minimal, 6)
		block := object{"handleId": "r", "offset": terabyte - 1<<20, "len": 1 << 20}
		m.must(m.call("fs/readBlock", block, nil))
		m.must(m.call("fs/close", object{"handleId": "r"}, nil))
		m.special(m.workspaceWrite(), len(specialCalls))
		for _, id := range []string{"r", "w", "u"} {
			m.must(m.call("fs/close", object{"handleId": id}, nil))
		}
		var st syscall.Stat_t
		if m.must(syscall.Stat(at("copy"), &st)); st.Size != terabyte || st.Blocks > 1<<10 {
			t.Errorf("the copy of the huge file has %d bytes, in %d blocks", st.Size, st.Blocks)
		}
		if after := m.memory(); after > before+64<<20 {
			t.Errorf("the server has grown by %d MiB to %d MiB", (after-before)>>20, after>>20)
		}
	})
}

// special makes the first of specialCalls in a sandbox.
func (m *machine) special(sandbox object, calls int) {
	m.t.Helper()
	for _, c := range specialCalls[:calls] {
		for i, name := range specialFiles {
			path := uri(filepath.Join(m.ws, name))
			params := object{"path": path, "sandbox": sandbox}
			switch c.more["copy"] {
			case "from":
				// Of a link the link is copied; here, what it leads to is meant.
				real, err := filepath.EvalSymlinks(filepath.Join(m.ws, name))
				m.must(err)
				params = object{"sourcePath": uri(real), "destinationPath": uri(filepath.Join(m.ws, "copy")), "recursive": true, "sandbox": sandbox}
			case "to":
				params = object{"sourcePath": uri(filepath.Join(m.ws, "file")), "destinationPath": path, "recursive": true, "sandbox": sandbox}
			default:
				maps.Copy(params, c.more)
			}
			got := ""
			if failed, ok := errors.AsType[*protocol.Error](m.call(c.method, params, nil)); ok {
				got = failed.Message
			}
			if !strings.HasSuffix(got, c.want[i]) || (got == "") != (c.want[i] == "") {
				m.t.Errorf("%s %v of %s: %q, want %q", c.method, c.more, name, got, c.want[i])
			}
		}
	}
}

// memory is the most that the server has had, in bytes.
func (m *machine) memory() int {
	m.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
	m.must(err)
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	m.must(err)
	return kib << 10
}
