package doors

import (
	"os"
	"testing"

	"execserver/client"
)

// BenchmarkConnect is how long a client takes until it has a session: from the dial
// to the answer to initialize.
func BenchmarkConnect(b *testing.B) {
	tokenFile, token := secret(b, os.Geteuid())
	for _, bench := range []struct {
		name  string
		opts  *client.Options
		flags []string
	}{
		{"same user", nil, nil},
		{"token", &client.Options{Token: token}, []string{"--ws-auth", "capability-token", "--ws-token-file", tokenFile}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			d := serve(b, os.Geteuid(), append(bench.flags, "--listen", "ws://127.0.0.1:0")...)
			for b.Loop() {
				env, err := client.Dial(b.Context(), d.url, bench.opts)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				_ = env.Close()
				b.StartTimer()
			}
		})
	}
}
