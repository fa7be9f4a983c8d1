package sandbox_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestOwnMemory reads the files of /proc that show the process which opens them. With a
// sandbox, such a request reveals neither the server nor its file helper.
func TestOwnMemory(t *testing.T) {
	everyUser(t, func(t *testing.T, m *machine) {
		m.env = []string{"SECRET=hunter2"}
		m.start()
		for name, target := range map[string]string{
			"memory": "/proc/self/mem", "environment": "/proc/self/environ", "thread": "/proc/thread-self/mem",
			"server": fmt.Sprintf("/proc/%d/environ", m.pid), "server's memory": fmt.Sprintf("/proc/%d/mem", m.pid),
		} {
			m.must(os.Symlink(target, filepath.Join(m.ws, name)))
		}
		all := m.workspaceWrite()
		part := m.policy("restricted", special("root", "read"), special("project_roots", "write"), at(m.outside, "deny"))
		little := m.policy("restricted", special("minimal", "read"), special("project_roots", "write"))
		for policy, sandbox := range map[string]object{"everything": all, "most": part, "little": little} {
			for _, name := range []string{
				"/proc/self/mem", "/proc/1/mem", "/proc/thread-self/mem", "/proc/self/task/1/mem", "/proc/self/environ", "/proc/self/maps",
				"/proc/self/root/proc/self/mem", fmt.Sprintf("/proc/%d/environ", m.pid), fmt.Sprintf("/proc/%d/mem", m.pid),
				m.ws + "/memory", m.ws + "/environment", m.ws + "/thread", m.ws + "/server", m.ws + "/server's memory",
			} {
				for _, mode := range []string{"read", "replace"} {
					err := m.call("fs/open", object{"handleId": "h", "path": uri(name), "mode": mode, "sandbox": sandbox}, nil)
					if err == nil {
						t.Errorf("%s may be read: %s can be opened to %s", policy, name, mode)
						m.must(m.call("fs/close", object{"handleId": "h"}, nil))
					}
				}
				for _, follow := range []bool{true, false} {
					var found struct{ DataBase64 string }
					err := m.call("fs/readFile", object{"path": uri(name), "followSymlinks": follow, "sandbox": sandbox}, &found)
					text, _ := base64.StdEncoding.DecodeString(found.DataBase64)
					if err == nil {
						t.Errorf("%s may be read: %s is %d bytes, the secret among them: %v", policy, name, len(text), bytes.Contains(text, []byte("hunter2")))
					}
				}
			}
			m.wants(0, "", "fs/readFile", object{"path": "file:///proc/version", "sandbox": sandbox})
			m.wants(0, "", "fs/readFile", object{"path": "file:///proc/cpuinfo", "sandbox": sandbox})
		}
	})
}
