package testkit

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// VerifyMain runs tests, which fail if a goroutine is left after them.
func VerifyMain(m interface{ Run() int }) {
	code := m.Run()
	if code == 0 {
		if err := Leaks(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Leaks waits with Patience until no goroutine is left but those that run this test, and
// the threads that start processes, which must live as long as the program.
func Leaks() (err error) {
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); {
		err = goleak.Find(
			goleak.IgnoreAnyFunction("execserver/internal/process.(*starter).run"),
			goleak.IgnoreAnyFunction("execserver/internal/process.noticeStrays"))
		if err == nil {
			return nil
		}
	}
	return err
}
