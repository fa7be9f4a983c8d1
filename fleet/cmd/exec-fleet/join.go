package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"execserver/fleet/internal/fleet"
	"execserver/fleet/natstransport"
	"execserver/internal/auth"
	"execserver/internal/cli"
	"execserver/internal/cli/serve"
	"execserver/internal/session"
	"execserver/internal/sys"
	"execserver/server"
)

// fleetFlags are the flags of the server about the fleet that it joins.
type fleetFlags struct {
	server        *serve.Flags
	nats          natsFlags
	insecureNoTLS bool

	urls   []string
	name   string
	labels []string
}

func newJoinCommand() *cobra.Command {
	o := serve.Flags{Version: cli.Version(version)}
	joined := &fleetFlags{server: &o}
	command := &cobra.Command{
		Use:   "join --fleet URL [--name NAME] [flags]",
		Short: "Serve this machine through a gateway",
		Long: "join serves this machine like exec-server serve, but does not listen. It connects to a gateway, or\n" +
			"to the NATS servers of gateways, and clients reach it by its name. So the machine may be behind a\n" +
			"firewall. join has the flags of serve, except those about listening. docs/fleet.md describes fleets.",
		GroupID: groupServe,
		Example: "  exec-fleet join --fleet tls://gateway:4222 --token-file ~/.config/exec-server/join/token --name box-7 --label gpu=h100\n" +
			"  exec-fleet join --fleet wss://gateway:8443 --token-file ~/.config/exec-server/join/token",
		Args: cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := joined.complete(); err != nil {
				return cli.NewUsageError(err, command)
			}
			if len(joined.urls) > 0 {
				o.Fleet = joined
			}
			return o.Run(command)
		},
	}
	f := command.Flags()
	f.StringArrayVar(&joined.urls, "fleet", nil, "connect to the fleet at `URL`: nats://HOST:PORT, tls://HOST:PORT, ws://HOST:PORT or wss://HOST:PORT; may be repeated for the other servers of a cluster")
	f.StringVar(&joined.name, "name", "", "join under this `NAME`, of the characters A-Z a-z 0-9 _ -; default is the name of this machine")
	f.StringArrayVar(&joined.labels, "label", nil, "announce the label `KEY=VALUE` of this machine; may be repeated")
	f.StringVar(&joined.nats.tokenFile, "token-file", "", "sign in with the token in this `FILE`, which exec-fleet token makes")
	joined.nats.define(f)
	f.BoolVar(&joined.insecureNoTLS, "insecure-no-tls", false, "join other machines without TLS: anyone on the network can read the token, and run commands")
	o.Define(f, false)
	return command
}

// complete checks what the flag library cannot.
func (o *fleetFlags) complete() error {
	if len(o.urls) == 0 {
		return errors.New("name the fleet with --fleet URL")
	}
	if o.name == "" {
		host, _ := os.Hostname() // without one, the error says what to do
		o.name, _, _ = strings.Cut(host, ".")
	}
	if !natstransport.ValidName(o.name) {
		return cli.InvalidValue("name", o.name, "expected 1 to 64 of the characters A-Z a-z 0-9 _ -")
	}
	if _, err := fleet.ParseLabels(o.labels); err != nil {
		return err
	}
	if err := o.nats.check(o.urls); err != nil {
		return err
	}
	for _, text := range o.urls {
		scheme := schemeBeyond(text)
		if scheme != "" && o.nats.inClear(text) && !o.insecureNoTLS {
			return fmt.Errorf("refusing to join at %s without TLS: anyone on the network could read the token, and run commands here; make it tls:// or wss://, or use --insecure-no-tls if that is what you want", text)
		}
	}
	return nil
}

// Files returns the files that only the server may read.
func (o *fleetFlags) Files() []string { return o.nats.files() }

// Machine returns the name of this machine in its fleet.
func (o *fleetFlags) Machine() string { return o.name }

// Join implements serve.Fleet.
func (o *fleetFlags) Join(srv *server.Server, log *slog.Logger, drains chan<- os.Signal, _ chan<- error) (leave func(), err error) {
	ctx, stop := signal.NotifyContext(context.Background(), serve.Ending()...)
	defer stop()
	nc, err := o.connect(ctx, log)
	if err != nil {
		return nil, err
	}
	labels, _ := fleet.ParseLabels(o.labels) // complete has checked them
	host, _ := os.Hostname()                 // "" where there is none
	capacity := cmp.Or(o.server.MaxSessions, session.DefaultMaxSessions)
	drain := func() {
		srv.Drain() // at once, so that the entry says so
		select {
		case drains <- os.Interrupt: // any signal
		default: // it is draining
		}
	}
	replaces, named := o.predecessor(log)
	membership, err := fleet.Join(ctx, nc, fleet.Member{
		Name: o.name, Host: host, Labels: labels, Version: cli.Version(version), System: runtime.GOOS + "/" + runtime.GOARCH, Sandbox: o.server.Sandbox,
	}, fleet.JoinOptions{
		Log: log, Replaces: replaces, Named: named,
		Serve: func(conn *natstransport.Conn) { _ = srv.ServeFor(conn, conn.Hello()) }, // serve logs how it ends
		Drain: drain,
		Load: func() fleet.Load {
			s := srv.Stats()
			return fleet.Load{Sessions: s.SessionsAttached + s.SessionsDetached, Processes: s.Running, Capacity: capacity, Draining: srv.Draining()}
		},
	})
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("join the fleet: %w", err)
	}
	o.server.Banner(log, "fleet:"+o.name)
	return func() {
		membership.Close()
		nc.Close()
	}, nil
}

// predecessor returns the instance of a machine that had the name on this host and has ended,
// and what is to be done with that of this one.
func (o *fleetFlags) predecessor(log *slog.Logger) (replaces string, named func(instance string)) {
	const without = "if this machine is killed, the next one may have to wait for its name"
	state, err := stateHome()
	var p *predecessor
	if err == nil {
		p, err = findPredecessor(state, o.name, o.urls, thisHost())
	}
	if err != nil {
		log.Info(without, "reason", err)
		return "", nil
	}
	return p.instance, func(instance string) {
		if err := p.write(instance); err != nil {
			log.Warn(without, "reason", err)
		}
	}
}

// connect connects to the fleet. It waits for one that does not listen yet, until ctx ends.
func (o *fleetFlags) connect(ctx context.Context, log *slog.Logger) (*nats.Conn, error) {
	opts, err := o.nats.options(o.urls, log)
	if err != nil {
		return nil, err
	}
	if file := o.nats.tokenFile; file != "" {
		text, err := auth.ReadFile(file, auth.SecretFile)
		if err != nil {
			return nil, fmt.Errorf("read the token of the fleet in %s: %w", file, sys.WrapError(err))
		}
		if len(strings.TrimSpace(string(text))) == 0 {
			return nil, fmt.Errorf("read the token of the fleet: %s is empty", file)
		}
		opts = append(opts, nats.UserInfoHandler(func() (user, password string) {
			text, err := auth.ReadFile(file, auth.SecretFile) // it may have been replaced
			if err != nil {
				log.Error("cannot read the token of the fleet", "error", err)
			}
			return o.name, strings.TrimSpace(string(text))
		}))
	}
	opts = append(opts, nats.Name(o.name), nats.CustomInboxPrefix(fleet.InboxPrefix(o.name)))
	servers := strings.Join(o.urls, ",")
	for attempts := 0; ; attempts++ {
		nc, err := nats.Connect(servers, opts...)
		switch {
		case err == nil:
			return nc, nil
		case errors.Is(err, nats.ErrAuthorization):
			if len(serve.Given(nil, o.nats.tokenFile, o.nats.creds, o.nats.nkey)) == 0 {
				return nil, fmt.Errorf("join the fleet: the gateway wants a token; exec-fleet token %s makes one; name its file with --token-file", o.name)
			}
			return nil, fmt.Errorf("join the fleet: the gateway refuses the name %s or its token; exec-fleet token %[1]s makes one", o.name)
		case errors.As(err, new(*tls.CertificateVerificationError)):
			return nil, fmt.Errorf("join the fleet at %s: %w", servers, err)
		case attempts == 0:
			log.Warn("cannot connect to the fleet yet; trying again", "at", servers, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("join the fleet at %s: interrupted while waiting for it: %w", servers, err)
		case <-time.After(reconnectDelay(attempts)):
		}
	}
}
