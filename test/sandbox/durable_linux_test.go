package sandbox_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/seccomp"
)

// durableVariable says whether the server makes its writes durable. With the variable, its
// programs cannot sync files.
const durableVariable = "EXEC_SERVER_TEST_DURABLE"

// denySync makes fsync fail, because nobody can see whether content is on disk.
func denySync() error {
	return errors.Join(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), seccomp.Install([]seccomp.Instruction{
		{Op: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number
		{Op: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jf: 1},
		{Op: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EIO)},
		{Op: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}))
}

// TestDurableWrites writes in sandboxes. The helpers of a server with durable writes wait for the
// disk, and those of another one do not.
func TestDurableWrites(t *testing.T) {
	for _, durable := range []bool{true, false} {
		t.Run(fmt.Sprint(durable), func(t *testing.T) {
			everyUser(t, func(t *testing.T, m *machine) {
				m.env = append(m.env, durableVariable+"="+strconv.FormatBool(durable))
				m.start()
				if m.conn.Info.Sandbox.Means == "none" {
					t.Skip(m.conn.Info.Sandbox.Reason)
				}
				sandbox := m.workspaceWrite()
				check := func(what string, err error) {
					t.Helper()
					if want := "input/output error"; durable && (err == nil || !strings.Contains(err.Error(), want)) || !durable && err != nil {
						t.Errorf("%s: %v", what, err)
					}
				}
				write := func(name string) error {
					return m.call("fs/writeFile", object{"path": uri(m.ws + "/" + name), "dataBase64": "bmV3", "sandbox": sandbox}, nil)
				}
				check("a new file", write("new"))
				check("an old file", write("file"))
				check("a copy", m.call("fs/copy", object{
					"sourcePath": uri(m.ws + "/file"), "destinationPath": uri(m.ws + "/copy"), "recursive": false, "sandbox": sandbox,
				}, nil))
				m.must(m.call("fs/open", object{"handleId": "h", "path": uri(m.ws + "/file"), "mode": "update", "sandbox": sandbox}, nil))
				m.must(m.call("fs/writeBlock", object{"handleId": "h", "offset": 0, "chunk": "bmV3"}, nil))
				check("blocks", m.call("fs/close", object{"handleId": "h"}, nil))
			})
		})
	}
}
