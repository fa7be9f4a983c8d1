package testkit

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// VerifyMain runs tests, which fail if a goroutine is left after them, as Leaks says.
func VerifyMain(m interface{ Run() int }, known ...string) {
	VerifyMainIn("", m, known...)
}

// VerifyMainIn is VerifyMain for tests whose programs are in a directory. It removes that.
func VerifyMainIn(dir string, m interface{ Run() int }, known ...string) {
	code := m.Run()
	if dir != "" {
		_ = os.RemoveAll(dir)
	}
	if code == 0 {
		if err := Leaks(known...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// Leaks waits with Patience until no goroutine is left but those that run this test, and
// the threads that start processes, which must live as long as the program, and those with a
// function of known in their stack.
func Leaks(known ...string) (err error) {
	ignored := []goleak.Option{
		goleak.IgnoreAnyFunction("execserver/internal/process.(*forkThread).run"),
		goleak.IgnoreAnyFunction("execserver/internal/process.watchStrays"),
	}
	for _, function := range known {
		ignored = append(ignored, goleak.IgnoreAnyFunction(function))
	}
	for deadline := time.Now().Add(Patience); time.Now().Before(deadline); {
		err = goleak.Find(ignored...)
		if err == nil {
			return nil
		}
	}
	return err
}
