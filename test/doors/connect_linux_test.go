package doors

import (
	"os"
	"slices"
	"testing"
	"time"

	"execserver/client"
)

// BenchmarkConnect measures the time from a client's dial to the answer to initialize.
// Each client connects after the server has finished with the one before.
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
			var took []time.Duration
			for b.Loop() {
				begin := time.Now()
				env, err := client.Dial(b.Context(), d.url, bench.opts)
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begin))
				_ = env.Close()
				time.Sleep(10 * time.Millisecond)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
