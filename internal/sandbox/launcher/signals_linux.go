package launcher

import (
	"os"
	"os/signal"
	"syscall"
)

// passed are the signals that mean the command when they are sent to the
// launcher. To catch them is also what keeps them from ending it.
var passed = []os.Signal{
	syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

func catchSignals() <-chan os.Signal {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passed...)
	return signals
}

// passSignals passes signals on to the command, or to its group when it has one
// of its own. In the launcher's group, what a terminal sends has reached it
// already.
func passSignals(signals <-chan os.Signal, command int, group bool) {
	for sig := range signals {
		switch number := sig.(syscall.Signal); {
		case group:
			_ = syscall.Kill(-command, number) // it may have ended
		case number != syscall.SIGINT && number != syscall.SIGQUIT:
			_ = syscall.Kill(command, number)
		}
	}
}
