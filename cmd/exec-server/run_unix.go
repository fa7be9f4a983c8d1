//go:build unix

package main

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

// Signals about the terminal of this program. It gets continueSignal when it continues
// after it was stopped.
const (
	resizeSignal   = syscall.SIGWINCH
	continueSignal = syscall.SIGCONT
)

// stayInBackground lets this program use its terminal from the background without being
// stopped: it looks who has the terminal itself. The system would stop it also when a
// signal has just continued it that is to end it.
func stayInBackground() { signal.Ignore(syscall.SIGTTIN, syscall.SIGTTOU) }

// suspend stops this program and the others of its job, as ^Z does. It returns when the
// program continues, or cannot be stopped.
func suspend() (continued bool) {
	wakened := make(chan os.Signal, 1)
	signal.Notify(wakened, continueSignal)
	defer signal.Stop(wakened)
	_ = syscall.Kill(0, syscall.SIGTSTP)
	select {
	case <-wakened:
		return true
	case <-time.After(stopTime): // nobody could continue it
		return false
	}
}

// stopTime is how long the system may take to stop this program.
const stopTime = time.Second
