//go:build unix

package run

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// passedSignals are forwarded to the command, and resizeSignal to its terminal.
var passedSignals = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, resizeSignal,
}

// Signals about the local terminal. continueSignal arrives when this program continues after a
// stop.
const (
	resizeSignal   = syscall.SIGWINCH
	continueSignal = syscall.SIGCONT
)

// stayInBackground lets this program use its terminal from the background without being stopped,
// because it checks the foreground job itself. Otherwise the system could also stop it when a
// signal has just continued it in order to end it.
func stayInBackground() { signal.Ignore(syscall.SIGTTIN, syscall.SIGTTOU) }

// suspend stops this program and its job, as ^Z does. It returns when the program continues, or
// cannot be stopped.
func suspend() (continued bool) {
	wakened := make(chan os.Signal, 1)
	signal.Notify(wakened, continueSignal)
	defer signal.Stop(wakened)
	_ = syscall.Kill(0, syscall.SIGTSTP)
	select {
	case <-wakened:
		return true
	case <-time.After(stopTime): // an orphaned job cannot be stopped
		return false
	}
}

// stopTime bounds the wait for the stop.
const stopTime = time.Second
