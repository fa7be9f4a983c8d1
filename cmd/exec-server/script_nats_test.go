//go:build unix

package main

import (
	"errors"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rogpeppe/go-internal/testscript"

	"execserver/internal/testkit"
)

func scriptNATS(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, !neg && len(args) == 1, "nats NKEY")
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: ts.MkAbs(".nats"), Nkeys: []*server.NkeyUser{{Nkey: args[0]}},
	})
	ts.Check(err)
	s.Start()
	ts.Defer(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(testkit.Patience) {
		ts.Check(errors.New("the NATS server does not start"))
	}
	ts.Setenv("nats", "nats://"+s.Addr().String())
}
