package server

import "execserver/internal/session"

// Recorder records processes.
type Recorder interface {
	session.Recorder
}
