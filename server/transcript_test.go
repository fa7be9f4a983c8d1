package server_test

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"execserver/internal/testkit"
	"execserver/internal/testkit/servertest"
	"execserver/internal/testkit/transcript"
	"execserver/server"
)

var update = flag.Bool("update", false, "rewrite the expectations of the transcripts")

// updateTransport is the transport that expectations are taken from.
const updateTransport = "websocket"

// TestTranscripts runs the contract with other implementations, as chosen says. wss has client
// certificates, unix and ws-unix, which is WebSocket, a peer that is another user.
func TestTranscripts(t *testing.T) {
	files := transcripts(t)
	for _, f := range files {
		for _, assignment := range f.Env {
			name, value, _ := strings.Cut(assignment, "=")
			t.Setenv(name, value)
		}
	}
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			if *update {
				for _, f := range files {
					if isFor(f, transport) && (transport == updateTransport || !f.For(updateTransport)) {
						t.Run(f.Name, func(t *testing.T) { runFile(t, f, transport) })
					}
				}
				return
			}
			if transport == "wss" && testkit.RaceEnabled {
				t.Skip("TLS takes much of the race detector's time, and nothing of what is behind it differs")
			}
			t.Parallel() // most of the time is waiting
			next := make(chan *transcript.File, len(files))
			for i, f := range files {
				if chosen(f, i, transport) {
					next <- f
				}
			}
			close(next)
			var running sync.WaitGroup
			for range 3 { // more than there are processors
				running.Go(func() {
					for f := range next {
						t.Run(f.Name, func(t *testing.T) { runFile(t, f, transport) })
					}
				})
			}
			running.Wait()
		})
	}
}

var transports = []string{"memory", "unix", "stdio", "wss", "ws-unix", "websocket"}

// chosen reports whether a transcript, the ith one, is run over a transport. With
// EXEC_SERVER_TEST_TRANSCRIPTS=full it is run over every one that it is for. Otherwise it is run
// over WebSocket and, as what is behind a transport does not know it, over one of the others
// in turn.
func chosen(f *transcript.File, i int, transport string) bool {
	if !isFor(f, "websocket") || os.Getenv("EXEC_SERVER_TEST_TRANSCRIPTS") == "full" {
		return isFor(f, transport)
	}
	others := slices.DeleteFunc(slices.Clone(transports), func(other string) bool { return other == "websocket" || !isFor(f, other) })
	return transport == "websocket" || len(others) > 0 && others[i%len(others)] == transport
}

// isFor reports whether a transcript is for a transport. wss and ws-unix are a websocket.
func isFor(f *transcript.File, transport string) bool {
	if strings.HasPrefix(transport, "ws") {
		transport = "websocket"
	}
	return f.For(transport)
}

func transcripts(t *testing.T) []*transcript.File {
	t.Helper()
	files, err := transcript.ParseDir(filepath.Join("..", "transcripts"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func runFile(t *testing.T, f *transcript.File, transport string) {
	for _, s := range f.Scenarios {
		t.Run(s.Name, func(t *testing.T) {
			err := s.Run(serveInProcess(t, transport, f.Options), transcript.Options{Dir: realTempDir(t)})
			if err != nil && *update {
				err = s.Run(serveInProcess(t, transport, f.Options), transcript.Options{Dir: realTempDir(t), Update: true})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	if !*update {
		return
	}
	if err := os.WriteFile(f.Path, f.Format(), 0o644); err != nil {
		t.Error(err)
	}
}

// realTempDir is a directory whose path holds no symbolic links, as
// fs/canonicalize answers it.
func realTempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// serveInProcess starts a server of the options in a transcript's header, and
// checks in the end that it goes away.
func serveInProcess(t *testing.T, transport string, options map[string]string) transcript.Server {
	t.Helper()
	o := servertest.Options(t, options)
	var authority *testkit.Authority
	if transport == "wss" {
		authority = testkit.NewAuthority(t, "test")
		authenticator, err := server.NewAuthenticator(server.AuthConfig{ClientCAFile: authority.File})
		if err != nil {
			t.Fatal(err)
		}
		o.Auth = authenticator
	}
	if strings.HasSuffix(transport, "unix") {
		o.Peers = &server.Peers{UIDs: []uint{uint(unixPeer())}}
	}
	srv := server.New(o)
	t.Cleanup(func() { testkit.Shutdown(t, srv) })
	limit := servertest.Options(t, options).MaxMessageBytes
	switch transport {
	case "memory":
		return memoryServer{srv, limit}
	case "stdio":
		return stdioServer{srv, limit}
	case "unix":
		return listenUnix(t, srv)
	case "ws-unix":
		return webSocketOnUnix{listenUnix(t, srv).(unixServer).path}
	case "wss":
		return listenTLS(t, srv, authority)
	}
	return listenWebSocket(t, srv)
}

// TestTranscriptsOfCommand runs the transcripts against the server that
// EXEC_SERVER_COMMAND starts, such as "codex exec-server". The released server
// need not agree in all details, and must not agree where a scenario says that
// it differs. With EXEC_SERVER_EXACT=1 the command is held to everything.
func TestTranscriptsOfCommand(t *testing.T) {
	command := strings.Fields(os.Getenv("EXEC_SERVER_COMMAND"))
	if len(command) == 0 {
		t.Skip("EXEC_SERVER_COMMAND is not set")
	}
	exact := os.Getenv("EXEC_SERVER_EXACT") == "1"
	for _, transport := range []string{"websocket", "stdio"} {
		t.Run(transport, func(t *testing.T) {
			for _, f := range transcripts(t) {
				if !f.For(transport) || len(f.Options) > 0 && !(exact && servertest.AreFlags(f.Options)) {
					continue
				}
				for _, s := range f.Scenarios {
					t.Run(f.Name+"/"+s.Name, func(t *testing.T) {
						options := transcript.Options{Dir: realTempDir(t), Reference: !exact, Timeout: 4 * time.Second}
						err := s.Run(commandServer{t, command, f, transport, new(string)}, options)
						switch {
						case err == nil && s.Differs != "" && !s.Maybe && !exact:
							t.Errorf("agrees, although the transcript says that it differs: %s", s.Differs)
						case err != nil && (s.Differs == "" || exact):
							t.Error(err)
						}
					})
				}
			}
		})
	}
}
