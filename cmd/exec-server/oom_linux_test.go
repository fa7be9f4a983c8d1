package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestOOMScore checks that a server that the OOM killer spares does not extend this to
// its processes: they have the value with which the server was started.
func TestOOMScore(t *testing.T) {
	eachMeans(t, func(t *testing.T, attr *syscall.SysProcAttr, flags ...string) {
		p := startListening(t, attr, flags...)
		c := p.connect()
		path := fmt.Sprintf("/proc/%d/oom_score_adj", p.server())
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		before := strings.TrimSpace(string(text))
		for _, changed := range []string{"777", "-123"} {
			if err := os.WriteFile(path, []byte(changed), 0); err != nil {
				t.Logf("the server cannot have %s: %v", changed, err)
				continue
			}
			for _, tty := range []bool{false, true} {
				id := fmt.Sprint(changed, tty)
				start := shellSpec(id, "until [ $(cat /proc/$$/oom_score_adj) = "+before+" ]; do :; done; (cat /proc/self/oom_score_adj)")
				start["tty"] = tty
				c.start(start)
				if got := strings.TrimSpace(c.outputOf(id)); got != before {
					t.Errorf("a process has oom_score_adj %q, want %s", got, before)
				}
			}
		}
	})
}
