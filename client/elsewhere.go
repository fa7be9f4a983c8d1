package client

import (
	"context"
	"os"
	"time"

	"execserver/protocol"
)

// SignalIn sends a signal to a process of a session of the same principal, this
// Environment's or another, whether a connection has it or not, like Process.Signal
// (PROTOCOL.md, "Controlling sessions"). Interrupts go to the process's own group, also on
// a terminal. A process that does not exist is no error. The server needs the capability
// sessionControl.
func (e *Environment) SignalIn(ctx context.Context, session, process string, sig os.Signal) error {
	if !e.has(capControl) {
		return &UnsupportedError{"signal a process of another session", capControl}
	}
	name, err := signalName(sig)
	if err != nil {
		return err
	}
	return e.link.signal(ctx, protocol.SignalParams{SessionID: &session, ProcessID: process, Signal: name})
}

// TerminateIn ends a process of a session of the same principal, and its descendants, like
// Process.Terminate. A process that does not exist, or has closed, is no error. The server
// needs the capability sessionControl.
func (e *Environment) TerminateIn(ctx context.Context, session, process string, grace time.Duration) error {
	if !e.has(capControl) {
		return &UnsupportedError{"end a process of another session", capControl}
	}
	return e.link.terminateIn(ctx, &session, process, grace)
}

// EndSession ends a session of the same principal, with everything in it, whether it has a
// connection or a lease or not. The error is a *protocol.Error with the code InvalidRequest
// if there is none. The server needs the capability sessionControl.
func (e *Environment) EndSession(ctx context.Context, session string) error {
	if !e.has(capControl) {
		return &UnsupportedError{"end a session", capControl}
	}
	_, err := e.link.request(ctx, protocol.MethodEndSession, protocol.EndSessionParams{SessionID: session})
	return err
}
