//go:build unix

package broker_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"

	"execserver/fleet/internal/broker"
	"execserver/internal/testkit"
)

func TestMachinesFiles(t *testing.T) {
	digest := fmt.Sprintf("sha256 = \"%x\"\n", sha256.Sum256([]byte("a token that nobody guesses")))
	for _, row := range []struct{ text, want string }{
		{"", ""},
		{"[[machine]]\nname = \"box-7\"\n" + digest, ""},
		{"[[machine]]\nname = \"*\"\naccount = \"acme\"\n" + digest, ""},
		{"[[machine]]\nname = \"box-*\"\nexpires = 2030-01-01T00:00:00Z\n" + digest, ""},
		{"[[machine]]\n" + digest, "machine 1 (name \"\"): name must"},
		{"[[machine]]\nname = \"a.b\"\n" + digest, "name must"},
		{"[[machine]]\nname = \"a*b\"\n" + digest, "name must"},
		{"[[machine]]\nname = \"**\"\n" + digest, "name must"},
		{"[[machine]]\nname = \"box\"\naccount = \"a b\"\n" + digest, "account must"},
		{"[[machine]]\nname = \"box\"\n", "sha256 must"},
		{"[[machine]]\nname = \"box\"\nsha256 = \"the token itself\"\n", "sha256 must"},
		{"[[machine]]\nname = \"box\"\ncolor = \"red\"\n" + digest, "unknown key"},
		{"[[machine]]\nname = \"the token itself", "line"},
	} {
		_, err := broker.ReadMachines(testkit.Secret(t, row.text))
		if (row.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%q: %v, want %q", row.text, err, row.want)
		}
		if err != nil && strings.Contains(err.Error(), "token itself") {
			t.Errorf("the error repeats what may be secret: %v", err)
		}
	}
	path := testkit.Secret(t, "")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := broker.ReadMachines(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that others can read: %v", err)
	}
}
