//go:build linux

package fleet

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
)

// TestAuditLog has a client use a machine and drain it. The gateway records who did that.
func TestAuditLog(t *testing.T) {
	t.Parallel()
	tokens := testkit.Secret(t, fmt.Sprintf("[[token]]\nname = \"ann\"\nsha256 = \"%x\"\nscope = [\"full\"]\n"+
		"[[token]]\nname = \"bob\"\nsha256 = \"%x\"\nscope = [\"full\"]\nmachines = [\"other\"]\n",
		sha256.Sum256([]byte("the token of ann")), sha256.Sum256([]byte("the token of bob"))))
	log := filepath.Join(t.TempDir(), "audit.log")
	n := gateway(t, "--tokens", tokens, "--audit-log", log, "--audit-required")
	n.tokenFile = testkit.Secret(t, "the token of ann")
	join(t, []*node{n}, "box")
	dial := func(token string) (env *client.Environment, err error) {
		return client.Dial(t.Context(), "ws://"+n.client+"/env/box", &client.Options{Token: token})
	}
	var env *client.Environment
	testkit.WaitFor(t, testkit.Patience, func() (err error) { // the gateway may not know the machine yet
		env, err = dial("the token of ann")
		return err
	})
	if _, err := dial("the token of nobody"); err == nil {
		t.Error("a wrong token opened a machine")
	}
	if _, err := dial("the token of bob"); err == nil {
		t.Error("bob opened a machine that is not for him")
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
	file := testkit.Secret(t, "the token of ann")
	testkit.WaitFor(t, testkit.Patience, func() error { // nor list it
		out, err := exec.Command(n.cmd.Path, "drain", "box", "--gateway", "ws://"+n.client, "--token-file", file).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	var got []string
	testkit.WaitFor(t, testkit.Patience, func() error {
		text, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		got = nil
		for line := range strings.Lines(string(text)) {
			var e struct{ Event, Principal, Machine string }
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				return err
			}
			got = append(got, strings.Join([]string{e.Event, e.Principal, e.Machine}, " "))
		}
		if !slices.Contains(got, "machine drained ann box") || !slices.Contains(got, "machine closed ann box") {
			return errors.New(string(text))
		}
		return nil
	})
	for _, want := range []string{"machine opened ann box", "machine refused bob box", "authentication refused  "} {
		if !slices.Contains(got, want) {
			t.Errorf("%q is missing in %q", want, got)
		}
	}
}
