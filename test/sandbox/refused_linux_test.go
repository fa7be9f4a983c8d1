package sandbox_test

import (
	"os"
	"path/filepath"
	"testing"
)

// TestNoMeans has servers without any means of confinement, and with programs in
// the place of bubblewrap that do not confine (row 44).
func TestNoMeans(t *testing.T) {
	for name, script := range map[string]string{
		"missing": "",
		"fails":   "#!/bin/sh\nexit 1\n",
		"hangs":   "#!/bin/sh\nexec sleep 1000\n",
		"bare":    "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift 2\nexec \"${0%/bwrap}/program\" \"$@\"\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := prepareMachine(t, user{}, "bubblewrap")
			m.bubblewrap = filepath.Join(m.base, "bwrap")
			_ = os.Remove(m.bubblewrap)
			if script != "" {
				m.must(os.WriteFile(m.bubblewrap, []byte(script), 0o755))
			}
			m.start()
			if m.info.Sandbox.Means != "none" || m.info.Sandbox.Reason == "" {
				t.Fatalf("%+v", m.info.Sandbox)
			}
			m.refuses(m.workspaceWrite(), -32602, "sandbox intent cannot be enforced on this executor: ")
			m.wants(-32603, "sandbox intent cannot be enforced", "fs/writeFile", object{"path": uri(m.ws + "/x"), "dataBase64": "", "sandbox": m.workspaceWrite()})
			if _, err := os.Lstat(m.ws + "/x"); err == nil {
				t.Error("the file is written")
			}
			// What needs no confinement goes on to work.
			if p := m.run(command{argv: []string{"/bin/true"}}); p.exit.ExitCode != 0 || p.sandboxType != "none" {
				t.Errorf("%+v %s", p.exit, p.sandboxType)
			}
			disabled := object{"permissions": object{"type": "disabled"}, "windowsSandboxLevel": "disabled"}
			if p := m.run(command{argv: []string{"/bin/sh", "-c", "echo sandbox; exit 1"}, sandbox: disabled}); p.sandboxType != "linuxSeccomp" || !p.exit.SandboxDenied {
				t.Errorf("%+v %s", p.exit, p.sandboxType)
			}
		})
	}
}

// TestNetworkAlone has policies that leave files alone.
func TestNetworkAlone(t *testing.T) {
	m := prepareMachine(t, user{}, "bubblewrap")
	m.start()
	for _, sandbox := range []object{
		{"permissions": object{"type": "external", "network": "restricted"}, "windowsSandboxLevel": "disabled"},
		m.policy("restricted", special("root", "write")),
	} {
		m.attack(t, "alone", m.program, sandbox, false, 0)
	}
	m.refuses(object{"permissions": object{"type": "new"}, "windowsSandboxLevel": "disabled"}, -32602, "unknown variant `new`")
	if _, _, err := m.begin(command{argv: []string{"/none"}, sandbox: object{"permissions": object{"type": "external", "network": "restricted"}, "windowsSandboxLevel": "disabled"}}); err == nil {
		t.Error("a program that does not exist is started")
	}
}

func TestRequire(t *testing.T) {
	m := newMachine(t, user{}, "require")
	m.refuses(nil, -32602, "--sandbox=require")
	m.refuses(object{"permissions": object{"type": "disabled"}, "windowsSandboxLevel": "disabled"}, -32602, "--sandbox=require")
	m.says(m.workspaceWrite(), [2]string{"touch x", "done"})
}

// TestLandlock has the mode in which nothing but Landlock confines files.
func TestLandlock(t *testing.T) {
	m := newMachine(t, user{}, "landlock")
	m.says(m.policy("restricted", special("root", "read")),
		[2]string{"touch x", "Permission denied"}, [2]string{"cat file", "old"}, [2]string{"echo >/dev/null", "done"})
	m.refuses(m.workspaceWrite(), -32602, "--sandbox=landlock")
	m.refuses(m.policy("restricted", special("root", "read"), at(m.outside, "deny")), -32602, "--sandbox=landlock")
}
