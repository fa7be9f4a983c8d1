//go:build unix

package client_test

import (
	"bytes"
	"context"
	"os/exec"
	"slices"
	"strconv"
	"testing"
	"time"

	"execserver/client"
	"execserver/internal/testkit"
)

// BenchmarkRun compares a command that does nothing with os/exec's.
func BenchmarkRun(b *testing.B) {
	path, err := exec.LookPath("true")
	if err != nil {
		b.Skip(err)
	}
	b.Run("os-exec", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command(path).Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, p := range places[:4] {
		b.Run(p.name, func(b *testing.B) {
			env := p.open(b, nil)
			for b.Loop() {
				if err := env.Command(context.Background(), path).Run(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOverhead runs each command with os/exec and in-process in turns, so
// that whatever else the machine does meets both, and reports how much longer
// the latter takes: at the median.
func BenchmarkOverhead(b *testing.B) {
	path, err := exec.LookPath("true")
	if err != nil {
		b.Skip(err)
	}
	argv, vars := testkit.Child("flood", strconv.Itoa(gigabyte))
	for name, run := range map[string][2]func(*client.Environment) error{
		"true": {
			func(*client.Environment) error { return exec.Command(path).Run() },
			func(env *client.Environment) error { return env.Command(context.Background(), path).Run() },
		},
		"gigabyte": {
			func(*client.Environment) error {
				c := exec.Command(argv[0], argv[1:]...)
				for name, value := range vars {
					c.Env = append(c.Env, name+"="+value)
				}
				_, err := c.Output()
				return err
			},
			func(env *client.Environment) error {
				_, err := child(env, "flood", strconv.Itoa(gigabyte)).Output()
				return err
			},
		},
	} {
		b.Run(name, func(b *testing.B) {
			env := openLocal(b, nil)
			var took [2][]time.Duration
			for b.Loop() {
				for i, run := range run {
					start := time.Now()
					if err := run(env); err != nil {
						b.Fatal(err)
					}
					took[i] = append(took[i], time.Since(start))
				}
			}
			slices.Sort(took[0])
			slices.Sort(took[1])
			middle := len(took[0]) / 2
			b.ReportMetric(float64(took[1][middle])/float64(took[0][middle]), "x-of-os/exec")
		})
	}
}

const gigabyte = 1 << 30

// BenchmarkOutput compares the output of a gigabyte with os/exec's.
func BenchmarkOutput(b *testing.B) {
	argv, vars := testkit.Child("flood", strconv.Itoa(gigabyte))
	check := func(b *testing.B, out []byte, err error) {
		if err != nil || len(out) != gigabyte {
			b.Fatalf("%d bytes, %v", len(out), err)
		}
	}
	b.Run("os-exec", func(b *testing.B) {
		b.SetBytes(gigabyte)
		for b.Loop() {
			c := exec.Command(argv[0], argv[1:]...)
			for name, value := range vars {
				c.Env = append(c.Env, name+"="+value)
			}
			out, err := c.Output()
			check(b, out, err)
		}
	})
	for _, p := range places[:4] {
		b.Run(p.name, func(b *testing.B) {
			env := p.open(b, nil)
			b.SetBytes(gigabyte)
			for b.Loop() {
				out, err := child(env, "flood", strconv.Itoa(gigabyte)).Output()
				check(b, out, err)
			}
		})
	}
}

// BenchmarkStdin writes 64 MiB to a process that drops it.
func BenchmarkStdin(b *testing.B) {
	data := make([]byte, 64<<20)
	for _, p := range places[:4] {
		b.Run(p.name, func(b *testing.B) {
			env := p.open(b, nil)
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				c := env.Command(context.Background(), "wc", "-c")
				c.Stdin = bytes.NewReader(data)
				if out, err := c.Output(); err != nil || string(bytes.TrimSpace(out)) != strconv.Itoa(len(data)) {
					b.Fatalf("%q, %v", out, err)
				}
			}
		})
	}
}
