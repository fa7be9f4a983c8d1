//go:build unix

package codex

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// A server is the server under test, of a client that dials: the program that runs the
// commands, and the URL that leads to it. The program listens there itself, or it has joined
// the gateway that does.
type server struct {
	*program
	gateway *gateway // nil if the program listens
	url     string
}

// startServer starts the server that the client dials. listening makes the command line of
// one that listens.
func (r *run) startServer(t testing.TB, s scenario, listening func(url string) []string) {
	t.Helper()
	r.server = new(server) // run.close ends what has been started of it
	if !r.client.gateway {
		command := slices.Concat(listening(r.webSocket()+"127.0.0.1:0"), s.flags, s.doors)
		r.server.program = r.startRemote(t, s, command)
		r.server.url = r.server.announces(t, "server", &r.server.stdout, r.webSocket())
		return
	}
	fleet, err := buildFleet()
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{run: r, command: fleet, doors: s.doors, clients: r.webSocket() + "127.0.0.1:0", machines: "nats://127.0.0.1:0"}
	r.server.gateway = g
	g.start(t)
	command := []string{fleet, "join", "--name", "box", "--fleet", g.machines, "--token-file", g.makeToken(t)}
	if r.secure {
		command = append(command, "--fleet-ca", "ca.pem")
	}
	r.server.program = r.startRemote(t, s, append(command, s.flags...))
	r.server.announces(t, "machine", &r.server.stdout, "fleet:box")
	r.server.url = g.clients + "/env/box"
}

// startRemote starts the program that runs the commands, in the work folder that the scenario
// wants.
func (r *run) startRemote(t testing.TB, s scenario, command []string) *program {
	t.Helper()
	if r.far = s.far && farPossible(); r.far {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		command = append([]string{self, "far", r.work}, command...)
	}
	return start(t, command, r.work, append(r.env(), serverEnv(t)...))
}

// webSocket is how URLs of the run's WebSockets begin.
func (r *run) webSocket() string {
	if r.secure {
		return "wss://"
	}
	return "ws://"
}

// end ends the server, and what listens for it, and reports whether SIGTERM was enough.
func (s *server) end() bool {
	enough := s.program == nil || s.stop(syscall.SIGTERM)
	if s.gateway != nil && s.gateway.program != nil {
		enough = s.gateway.stop(syscall.SIGTERM) && enough
	}
	return enough
}

// A gateway is one that a server has joined. It can be killed and started again.
type gateway struct {
	run      *run
	command  string
	doors    []string
	clients  string // the URL at which clients reach it
	machines string // the URL at which machines join

	*program
}

// data is the folder of what it keeps.
func (g *gateway) data() string { return filepath.Join(g.run.root, "gateway") }

// start starts it, from the second time on at the same addresses and with the same data.
func (g *gateway) start(t testing.TB) {
	t.Helper()
	g.program = start(t, append([]string{
		g.command, "gateway", "--listen", g.clients, "--fleet-listen", g.machines, "--data", g.data(),
	}, g.doors...), g.run.work, g.run.env())
	g.clients = g.announces(t, "gateway", &g.stdout, g.run.webSocket())
	const joining = "exec-fleet on "
	g.machines = strings.TrimPrefix(g.announces(t, "gateway", &g.stderr, joining), joining)
}

// makeToken makes a token for the machine, and returns the file that has it.
func (g *gateway) makeToken(t testing.TB) string {
	t.Helper()
	args := []string{"token", "--gateway", g.clients, "box"}
	env := g.run.env()
	if g.run.secure {
		args = append(args, "--token-file", "token")
		env = append(env, "SSL_CERT_FILE=ca.pem")
	}
	command := exec.Command(g.command, args...)
	command.Dir, command.Env = g.run.work, env
	command.Stderr = os.Stderr
	token, err := command.Output()
	file := filepath.Join(g.run.root, "machine-token")
	if err == nil {
		err = os.WriteFile(file, token, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// kill kills it at once: it can tell nobody, and write nothing.
func (g *gateway) kill(t testing.TB) {
	t.Helper()
	if err := g.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-g.done
}

// announces waits until the program, whose name is for messages, has written a line that
// begins with a text, and returns the line.
func (p *program) announces(t testing.TB, name string, out *testkit.Buffer, beginning string) (line string) {
	t.Helper()
	waitFor(t, testkit.Patience, func() error {
		select {
		case <-p.done:
			t.Fatalf("the %s ended: %v\n%s", name, p.err, p.stderr.Tail(8<<10))
		default:
		}
		for text := range strings.Lines(out.String()) {
			if whole := strings.TrimSuffix(text, "\n"); whole != text && strings.HasPrefix(whole, beginning) {
				line = whole
				return nil
			}
		}
		return fmt.Errorf("the %s has written %q, want a line that begins with %q", name, out.String(), beginning)
	})
	if line == "" {
		t.FailNow()
	}
	return line
}
