//go:build linux

package fleet

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
)

// TestTLS has machines join over TLS and over WebSocket with TLS, and clients come with
// tokens over wss.
func TestTLS(t *testing.T) {
	t.Parallel()
	authority := testkit.NewAuthority(t, "ours")
	cert, key := authority.Server()
	const clientToken = "the token of a client"
	tokens := testkit.Secret(t, fmt.Sprintf("[[token]]\nname = \"ann\"\nsha256 = \"%x\"\nscope = [\"full\"]\nmachines = [\"tcp\", \"web\"]\n", sha256.Sum256([]byte(clientToken))))
	n := &node{client: testkit.FreeAddress(t), fleet: testkit.FreeAddress(t)}
	web := testkit.FreeAddress(t)
	n.program = start(t, "gateway", "--listen", "wss://"+n.client, "--tls-cert", cert, "--tls-key", key, "--tokens", tokens,
		"--fleet-listen", "nats://"+n.fleet, "--fleet-listen", "wss://"+web, "--machines", machinesFile(t), "--data", t.TempDir())
	for name, url := range map[string]string{"tcp": "tls://" + n.fleet, "web": "wss://" + web, "other": "nats://" + n.fleet} {
		start(t, "join", "--name", name, "--fleet", url, "--fleet-ca", authority.File, "--token-file", testkit.Secret(t, token), "--without=cgroups")
	}
	opts := &client.Options{Token: clientToken, TLS: &tls.Config{RootCAs: authority.Roots()}}
	for _, name := range []string{"tcp", "web"} {
		env, err := dialPatiently(t, "wss://"+n.client+"/env/"+name, opts)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out, err := env.Command(t.Context(), "seq", "100000").Output()
		if err != nil || len(out) != 588_895 {
			t.Errorf("%s: %d bytes, %v", name, len(out), err)
		}
		_ = env.Close()
	}
	if _, err := client.Dial(t.Context(), "wss://"+n.client+"/env/other", opts); err == nil {
		t.Error("the token leads to a machine that it does not name")
	}
	if _, err := client.Dial(t.Context(), "wss://"+n.client+"/env/tcp", &client.Options{TLS: opts.TLS}); err == nil {
		t.Error("a client needs no token")
	}
}
