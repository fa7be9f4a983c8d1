//go:build unix

package codex

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"execserver/internal/testkit"
)

// A client is one way in which a user has Codex talk to the server.
type client struct {
	version string
	stdio   bool // the client starts the server, instead of dialing its WebSocket
	gateway bool // the client dials a gateway that the server has joined
}

// Releases with which something began or ended.
const (
	newest = testkit.CodexVersion
	oldest = "0.130.0" // plain paths, polls with process/read, knows no environments.toml
)

var clients = []client{
	{version: newest},
	{version: newest, stdio: true},
	{version: newest, gateway: true},
	{version: "0.169.0"},
	{version: oldest},
	{version: oldest, gateway: true},
}

func (c client) String() string {
	switch {
	case c.stdio:
		return c.version + "-stdio"
	case c.gateway:
		return c.version + "-gateway"
	}
	return c.version + "-ws"
}

// program is the client's executable, as scripts/install-codex installs it.
func (c client) program(t testing.TB) string {
	t.Helper()
	path := filepath.Join(cacheFolder(t), "codex", c.version, "codex")
	testkit.NeedFile(t, path, "scripts/install-codex "+c.version)
	return path
}

// cacheFolder is where scripts/install-codex puts its things, and where runs live if they may.
func cacheFolder(t testing.TB) string {
	t.Helper()
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			t.Fatal(err)
		}
		base = filepath.Join(home, ".cache")
	}
	return filepath.Join(base, "exec-server")
}

func TestMain(m *testing.M) {
	// The test program is also the programs that the scenarios run.
	if len(os.Args) > 1 && helpers[os.Args[1]] != nil {
		helpers[os.Args[1]](os.Args[2:])
		return
	}
	testkit.DefaultSignals()
	flag.Parse()
	// A client, a server and their commands are busy at the same time, so two runs fill a
	// small machine.
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", "2"); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if serverFolder != "" {
		os.RemoveAll(serverFolder)
	}
	os.Exit(code)
}

// serverFolder holds the server that was built, until all tests are done.
var serverFolder string

var buildServer = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "exec-server-test-")
	if err != nil {
		return "", err
	}
	serverFolder = folder
	program := filepath.Join(folder, "exec-server")
	return program, testkit.BuildProgram(program)
})

// buildFleet builds exec-fleet beside the server.
var buildFleet = sync.OnceValues(func() (string, error) {
	server, err := buildServer()
	if err != nil {
		return "", err
	}
	program := filepath.Join(filepath.Dir(server), "exec-fleet")
	build := exec.Command("go", "build", "-o", program, "./cmd/exec-fleet")
	build.Dir = filepath.Join("..", "..", "fleet")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, nil
})

// serverCommand is the server to test with client c, without --listen. ours tells whether
// it was built from this module and knows its flags.
func serverCommand(t testing.TB, c client) (command []string, ours bool) {
	t.Helper()
	if value := os.Getenv("EXEC_SERVER_COMMAND"); value == "codex" {
		return []string{c.program(t), "exec-server"}, false
	} else if command := strings.Fields(value); len(command) > 0 {
		return command, false
	}
	program, err := buildServer()
	if err != nil {
		t.Fatal(err)
	}
	return []string{program}, true
}
