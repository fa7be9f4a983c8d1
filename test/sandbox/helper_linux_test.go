package sandbox_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/extension"
	"execserver/internal/sandbox"
	"execserver/internal/sandbox/launcher"
	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
	"execserver/transport"
)

func init() { attacks["program"] = programAttacks }

// TestServersProgram checks that the helper in a sandbox, which is the server's own
// program, cannot change that program.
func TestServersProgram(t *testing.T) {
	for _, means := range []string{"userNamespace", "namespaces", "bubblewrap"} {
		t.Run(means, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, user{}, means)
			engine := sandbox.New(&sandbox.Options{Mechanisms: []sandbox.Mechanism{sandbox.Mechanism(means)}, Bubblewrap: m.bubblewrap, StateDir: m.state})
			defer engine.Close()
			policy, err := protocol.DecodeSandbox(m.encoded(m.workspaceWrite()), true)
			m.must(err)
			confinement, err := engine.Confine(policy, sandbox.Context{})
			m.must(err)
			defer confinement.Release()
			var output strings.Builder
			m.must(confinement.Run(t.Context(), sandbox.Command{
				Program: launcher.Self, Argv: []string{"self", "attack", "program", m.ws, m.outside, "1", "1", "/", "x"}, Dir: "/", Exec: true,
			}, func(cmd *exec.Cmd) { cmd.Stdout = &output }))
			judge(t, programAttacks, output.String())
		})
	}
}

var programAttacks = []attempt{
	{"18 chmod of the helper's program", "EROFS", func(*attacker) error { return unix.Chmod("/proc/self/exe", 0o755) }},
	{"18 utimes of the helper's program", "EROFS", func(*attacker) error { return unix.Utimes("/proc/self/exe", make([]unix.Timeval, 2)) }},
	{"18 write the helper's program", "EROFS ETXTBSY", func(*attacker) error { return write("/proc/self/exe") }},
}

func (m *machine) encoded(value any) []byte {
	text, err := json.Marshal(value)
	m.must(err)
	return text
}

// TestParamsOfSeveralLines sends params with line breaks, as a client on a WebSocket may.
func TestParamsOfSeveralLines(t *testing.T) {
	m := newMachine(t, user{}, "userNamespace")
	engine := sandbox.New(&sandbox.Options{StateDir: m.state})
	defer engine.Close()
	client, end := transport.Pipe(1 << 20)
	served := make(chan error, 1)
	go func() {
		served <- server.New(&server.Options{Extensions: &extension.Options{Sandbox: engine}}).ServeOnly(end)
	}()
	params, err := json.MarshalIndent(object{"path": uri(m.ws + "/lines"), "dataBase64": "aGVsbG8=", "sandbox": m.workspaceWrite()}, "", "\n")
	m.must(err)
	for _, message := range []string{
		`{"id":1,"method":"initialize","params":{"clientName":"test"}}`, `{"method":"initialized"}`,
		`{"id":2,"method":"fs/writeFile","params":` + string(params) + `}`,
	} {
		m.must(client.Write([]byte(message)))
	}
	for range 2 {
		answer, err := client.Read(nil)
		m.must(err)
		if strings.Contains(string(answer), `"error"`) {
			t.Errorf("%s", answer)
		}
	}
	m.must(client.Close(transport.Reason{}))
	<-served
}

// TestFirstProcess runs the server as PID 1 of a container. Its processes then have the
// same process ids as processes in a sandbox.
func TestFirstProcess(t *testing.T) {
	testkit.System(t, testkit.Root)
	for _, means := range []string{"userNamespace", "namespaces", "bubblewrap"} {
		t.Run(means, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, user{}, means)
			cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", m.program, "serve", means, m.bubblewrap, m.state)
			cmd.Stdin = strings.NewReader(`{"id":1,"method":"initialize","params":{"clientName":"test"}}` + "\n")
			output, err := cmd.Output()
			if want := `"means":"` + means + `"`; !strings.Contains(string(output), want) {
				t.Errorf("%v: %s, want %s", err, output, want)
			}
		})
	}
}
