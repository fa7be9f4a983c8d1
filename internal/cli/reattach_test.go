package cli

import (
	"testing"

	"execserver/client"
)

// TestReattachHintQuotesNames lets a server name a session like a command. The command line
// that a person copies must not run it.
func TestReattachHintQuotesNames(t *testing.T) {
	got := (&Machine{URL: "unix:///s"}).ReattachHint(new(client.Info), "come back with", "--read-only", "$(touch owned)\x1b[2J")
	if want := `come back with: exec-server attach --url unix:///s --read-only '$(touch owned)\x1b[2J'`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestReattachHintToUnknownMachine checks the hint for a machine that a gateway has chosen, if
// the machine announces no name, as in an older release, or an invalid one.
func TestReattachHintToUnknownMachine(t *testing.T) {
	for _, name := range []string{"", "any", "../x", "\x1b[2J\u202etxt"} {
		for _, one := range []struct {
			Machine
			want string
		}{
			{Machine{URL: "ws://gate:1/any", TokenFile: "token"}, "exec-server attach --url ws://gate:1/env/NAME --token-file token sh\n" +
				"find it with: exec-fleet ls --gateway ws://gate:1 --token-file token, and exec-server ps --url ws://gate:1/env/NAME --token-file token"},
			{Machine{URL: "ws://gate:1/up/any?label=gpu"}, "exec-server attach --url ws://gate:1/up/env/NAME sh\n" +
				"find it with: exec-fleet ls --gateway ws://gate:1/up, and exec-server ps --url ws://gate:1/up/env/NAME"},
		} {
			got := one.ReattachHint(&client.Info{Machine: name}, "come back with", "sh")
			if want := "come back with (NAME is the machine that the gateway has chosen): " + one.want; got != want {
				t.Errorf("%q: got %s, want %s", name, got, want)
			}
		}
	}
}
