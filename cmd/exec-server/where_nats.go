//go:build !core

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"execserver/client"
	"execserver/client/natsclient"
	"execserver/transport/natstransport"
)

// alsoNATS ends the list of the URLs for --url.
const alsoNATS = " or nats://HOST:PORT/MACHINE"

// checkNATS refuses a URL of NATS, and flags for it, that make no sense.
func (w *where) checkNATS() error {
	if _, _, err := natsclient.ParseURL(w.url); err != nil {
		return fmt.Errorf("--url: %w", err)
	}
	if w.tokenFile != "" {
		return errors.New("--token-file is for a server or a gateway; --fleet-creds and --fleet-nkey are for NATS")
	}
	return w.nats.check(nil)
}

// dialNATS connects to a machine behind NATS, without a gateway.
func (w *where) dialNATS(ctx context.Context, opts *client.Options) (*client.Environment, error) {
	log := opts.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	signIn, err := w.nats.options(log)
	if err != nil {
		return nil, err
	}
	return natsclient.Dial(ctx, w.url, &natsclient.Options{NATS: signIn}, opts)
}

// adviseNATS says what to do when a machine behind NATS cannot be reached, or returns "".
func adviseNATS(err error) string {
	switch {
	case errors.Is(err, natsclient.ErrRefused):
		return "give those of an account that may reach the machine with --fleet-creds or --fleet-nkey"
	case errors.Is(err, natstransport.ErrNoMachine):
		return "check the name, and whether exec-server join runs there"
	case errors.Is(err, natsclient.ErrUnreachable):
		return "check the address of the NATS server"
	}
	return ""
}
