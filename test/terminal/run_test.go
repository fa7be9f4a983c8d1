//go:build unix

package terminal

import (
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"execserver/internal/testkit"
)

// newShell starts a server and a shell there, with a network between that can be cut.
func newShell(t *testing.T, flags string) (s *screen, network *testkit.Link) {
	t.Helper()
	t.Parallel()
	server, address := startServer(t)
	network = testkit.NewLink(t, address)
	s = newScreen(t)
	s.far = server.Dir
	s.run("ws://"+network.Address(), flags)
	return s, network
}

// TestPrograms checks that programs that own the whole screen work, as do the size of the
// terminal, ^C, ^Z and fg.
func TestPrograms(t *testing.T) {
	testkit.Need(t, "vi", "less", "top")
	s, _ := newShell(t, "")
	s.line("stty size")
	s.await("\n20 100")
	s.resize(90, 25)
	s.line("stty size")
	s.await("\n25 90")

	s.clear()
	s.line("printf 'one\\ntwo\\n' >text; vi -u NONE -N text")
	s.await("\ntwo\n~")
	s.press("j", "A", "!", "Escape", "Z", "Z")
	s.prompt("far$")
	s.line("cat text")
	s.await("\none\ntwo!\nfar$")

	s.line("seq 1000 | less")
	s.await("24\n:")
	s.press("G")
	s.await("1000\n(END)")
	s.press("q")
	s.prompt("far$")

	s.line("top")
	s.await("PID")
	s.press("q")
	s.prompt("far$")

	s.clear()
	s.line("echo slee''ping; sleep 1000; echo code $?")
	s.await("sleeping")
	s.press("C-c")
	s.prompt("far$")
	s.shows("^C")
	s.line("echo read''y; cat")
	s.await("\nready")
	s.input("first")
	s.await("first\nfirst")
	s.press("C-z")
	s.await("Stopped")
	s.line("fg")
	s.await("\ncat")
	s.input("second")
	s.await("second\nsecond")
	s.press("C-d")
	s.prompt("far$")
	s.line("exit")
	s.isLocal()
}

// TestKeysGoNowhere checks that the keys that a person types while the link is down never
// reach the shell of this machine, however run ends.
func TestKeysGoNowhere(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(t *testing.T, s *screen, network *testkit.Link)
	}{
		{"failure", func(t *testing.T, _ *screen, network *testkit.Link) {
			_, other := startServer(t) // which does not know the session
			network.Lead(other)
			network.Set(testkit.LinkOpen)
		}},
		{"leave", func(_ *testing.T, s *screen, _ *testkit.Link) { s.write("~.") }},
		{"signal", func(_ *testing.T, s *screen, _ *testkit.Link) {
			s.kill(syscall.SIGTERM)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, network := newShell(t, "")
			network.Set(testkit.LinkRefused)
			s.write("touch early\r")
			s.await("12 keys went nowhere")
			s.write("touch late\r")
			s.await("23 keys went nowhere")
			test.end(t, s, network)
			s.isLocal()
			for _, name := range []string{"early", "late"} {
				if exists(filepath.Join(s.dir, name)) {
					t.Errorf("the shell of this machine has executed %q", "touch "+name)
				}
			}
		})
	}
}

// TestEscapes checks the commands of the person.
func TestEscapes(t *testing.T) {
	s, _ := newShell(t, "")
	s.write("~?")
	s.await("~.   leave")
	s.press("Enter")
	s.prompt("far$")
	s.line("echo ~~. | tr '~' 'x'") // not at the start of a line
	s.await("\nxx.")
	s.write("~~x\r")
	s.await("~x: not found\nfar$")

	s.write("~")
	s.press("C-z")
	s.await("Stopped")
	s.isLocal()
	s.line("fg")
	s.await("\nexec-server run")
	s.press("Enter")
	s.prompt("far$")
	s.write("~.")
	s.isLocal()
}

// TestOtherEscape checks that the escape character can be another one, or none.
func TestOtherEscape(t *testing.T) {
	s, _ := newShell(t, "--escape-char ^B")
	s.press("C-b")
	s.write(".")
	s.isLocal()
	s.line("exec-server run -t --on local --escape-char none sh -c 'echo read\"\"y; cat'")
	s.await("\nready")
	s.input("~.")
	s.await("~.\n~.")
	s.press("C-d")
	s.isLocal()
}

// TestModesEnd checks that the terminal is usable when the person leaves a program that
// owns the whole screen.
func TestModesEnd(t *testing.T) {
	s, _ := newShell(t, "")
	s.line("printf '\\033[?1049h\\033[?25l\\033[?1000h\\033[?2004hmo''des'; cat")
	s.await("modes")
	s.press("Enter")
	s.shows("modes")
	s.write("~.")
	s.isLocal()
	s.modesAreOff()
}

// TestKilledClient checks that nothing outlives run -t that was killed, once the server
// has waited for it.
func TestKilledClient(t *testing.T) {
	t.Parallel()
	_, address := startServer(t, "--detached-session-ttl", "1s")
	s := newScreen(t)
	s.run("ws://"+address, "")
	s.line("echo pid $$.")
	s.await("\npid ")
	_, text, _ := strings.Cut(s.shown(), "\npid ")
	text, _, _ = strings.Cut(text, ".")
	far, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	s.kill(syscall.SIGKILL)
	testkit.Gone(t, far)
}
