//go:build unix

package testkit

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Childless returns tests that fail if they leave a zombie, or a process that started
// with an environment variable of that value. Both are looked for in /proc, if there is one.
func Childless(m Tests, name, value string) Tests { return childless{m, name, value, Patience} }

type childless struct {
	Tests
	name, value string
	patience    time.Duration // for what is about to end
}

func (c childless) Run() int {
	if code := c.Tests.Run(); code != 0 {
		return code
	}
	left := settled(c.patience, func() []string {
		zombies, _ := zombies()
		running, _ := withVariable(c.name, c.value)
		return append(zombies, running...)
	})
	if len(left) > 0 {
		fmt.Fprintln(os.Stderr, "processes:", strings.Join(left, "; "))
		return 1
	}
	return 0
}
