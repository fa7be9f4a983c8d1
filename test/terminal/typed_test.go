//go:build unix

package terminal

import "testing"

// TestTypedAheadOfAttach checks that a program that owns the whole screen, and never draws it
// again, gets the keys that were typed before it could have: they wait for a moment only.
func TestTypedAheadOfAttach(t *testing.T) {
	s, network := newShell(t, "--name work")
	s.line(`trap '' WINCH; stty raw -echo; printf '\033[?1049hwh''ole'; head -c 2 >keys; stty sane; printf '\033[?1049l'; od -c keys`)
	s.await("whole")
	s.write("~d")
	s.await("detached")
	s.isLocal()
	s.line("exec-server attach --url " + "ws://" + network.Address() + " work")
	s.ahead("ab")
	s.prompt("far$")
	s.shows(`   a   b`)
}
