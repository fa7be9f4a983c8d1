package launcher

import (
	"os"
	"os/signal"
	"syscall"
)

// passed are the signals that the launcher forwards to the command. Catching them also
// keeps them from ending the launcher.
var passed = []os.Signal{
	syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

func catchSignals() <-chan os.Signal {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passed...)
	return signals
}

// fromTerminal reports whether a terminal sent a signal, to every process in the group.
// Standard input is closed by now, but the terminal stays the launcher's.
func fromTerminal(number syscall.Signal) bool {
	if number != syscall.SIGINT && number != syscall.SIGQUIT {
		return false
	}
	fd, err := syscall.Open("/dev/tty", syscall.O_RDONLY|syscall.O_CLOEXEC|syscall.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	_ = syscall.Close(fd)
	return true
}

// passSignals forwards signals to the command, or to its group if it has one of its own.
// In the launcher's group, a signal from the terminal has reached the command already.
func passSignals(signals <-chan os.Signal, command int, group bool) {
	for sig := range signals {
		number := sig.(syscall.Signal)
		switch {
		case group:
			_ = syscall.Kill(-command, number) // it may have ended
		case fromTerminal(number):
		default:
			_ = syscall.Kill(command, number)
		}
	}
}
