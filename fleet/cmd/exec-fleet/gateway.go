package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"execserver/fleet/internal/broker"
	"execserver/fleet/internal/fleet"
	"execserver/fleet/internal/metrics"
	"execserver/fleet/natstransport"
	"execserver/internal/auth"
	"execserver/internal/cli"
	"execserver/internal/cli/serve"
	"execserver/internal/extension"
	"execserver/internal/sys"
	"execserver/internal/web"
	"execserver/server"
)

// gatewayOptions are the flags of gateway. Of options it has those about clients.
type gatewayOptions struct {
	serve.Flags

	// An own NATS server,
	data, machines string
	fleetListen    []string
	cluster        clusterFlags
	insecureNoTLS  bool
	// or others.
	nats    []string
	account string
	signIn  natsFlags
}

func newGatewayCommand() *cobra.Command {
	var o gatewayOptions
	command := &cobra.Command{
		Use:   "gateway --listen URL [flags]",
		Short: "Serve the machines of a fleet to clients",
		Long: "gateway serves the machines that \"exec-fleet join\" connects to it. The path /env/NAME of its\n" +
			"WebSocket listener leads to a machine. /any leads to the machine with the least load, and\n" +
			"/any?label=KEY=VALUE to the least loaded one with a label. Clients such as Codex use each path like\n" +
			"a server.\n\n" +
			"gateway runs a NATS server itself, or uses others with --nats. docs/fleet.md describes fleets.",
		GroupID: groupServe,
		Example: "  exec-fleet gateway --listen ws://localhost:8765 --data ~/.local/state/exec-server/gateway\n" +
			"  exec-fleet gateway --listen wss://0.0.0.0:8765 --tls-cert cert.pem --tls-key key.pem --tokens tokens.toml \\\n" +
			"    --data /var/lib/exec-fleet-gateway --fleet-listen nats://0.0.0.0:4222",
		Args: cli.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.check(command.Flags()); err != nil {
				return cli.NewUsageError(err, command)
			}
			return o.run()
		},
	}
	o.defineGateway(command.Flags())
	return command
}

func (o *gatewayOptions) defineGateway(f *pflag.FlagSet) {
	cli.AddListenFlag(f, &o.Listen, "ws://127.0.0.1:0", "serve clients at `URL`: ws://IP:PORT or wss://IP:PORT; IP may be localhost; port 0 picks a free port")
	f.StringVar(&o.data, "data", "", "keep what the NATS server stores, and which machines have tokens, in this `directory`, which nothing else uses")
	f.StringArrayVar(&o.fleetListen, "fleet-listen", []string{"nats://127.0.0.1:0"}, "let machines join at `URL`: nats://IP:PORT, ws://IP:PORT or wss://IP:PORT; with --tls-cert, nats:// has TLS too; may be repeated")
	f.StringVar(&o.machines, "machines", "", "read which machines may join, with which tokens, from this TOML `file`; without it, exec-fleet token makes a token for each")
	o.cluster.define(f)
	f.BoolVar(&o.insecureNoTLS, "insecure-no-tls", false, "use NATS beyond this machine without TLS: anyone on the network could read and change every session, take the tokens of machines and the secret of the cluster, and run commands on all machines")
	f.StringArrayVar(&o.nats, "nats", nil, "use the NATS servers at this `URL` instead of an own one; may be repeated")
	f.StringVar(&o.account, "account", auth.DefaultAccount, "`NAME` of the account that --nats signs in to, in the file of --tokens")
	o.signIn.define(f)
	o.DefineAccess(f)
	o.Auth.Gateway = true
	f.StringVar(&o.AuditLog, "audit-log", "", "record who uses which machine in this `file`, one JSON object to a line; - for standard error")
	f.BoolVar(&o.AuditRequired, "audit-required", false, "refuse what cannot be recorded in the audit log")
	f.BoolVar(&o.Web, "web", false, "serve a page for browsers with the machines at /web; exec-fleet web prints a link to it")
	f.StringVar(&o.LogLevel, "log-level", "warn", "`level` of the log on standard error: debug, info, warn or error")
	f.StringVar(&o.LogFormat, "log-format", "text", "`format` of the log: text or json")
}

// check checks what the flag library cannot.
func (o *gatewayOptions) check(f *pflag.FlagSet) error {
	var empty error
	f.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && flag.Value.String() == "" {
			empty = fmt.Errorf("--%s needs a value", flag.Name) // an unset variable must not open the gateway
		}
	})
	own := len(o.nats) == 0
	switch {
	case empty != nil:
		return empty
	case own && o.data == "":
		return errors.New("--data must name the directory of the NATS server, or --nats the NATS servers to use")
	case !own && (o.data != "" || o.machines != "" || o.cluster.listen != "" || f.Changed("fleet-listen")):
		return errors.New("--data, --machines, --fleet-listen and --cluster-listen are about an own NATS server, which --nats replaces")
	case o.AuditRequired && o.AuditLog == "":
		return errors.New("--audit-required needs --audit-log")
	case own && (o.signIn != natsFlags{} || f.Changed("account")):
		return errors.New("--account, --fleet-creds, --fleet-nkey, --fleet-ca, --fleet-cert and --fleet-key are about the servers of --nats; a gateway needs none of them for its own NATS server")
	case (o.TLSCert == "") != (o.TLSKey == ""):
		return errors.New("--tls-cert and --tls-key go together")
	}
	_, err := o.NewLog(io.Discard)
	return errors.Join(o.cluster.complete(o.machines), o.CompleteAccess(), o.signIn.check(o.nats), err)
}

// run serves until a signal or a failure.
func (o *gatewayOptions) run() error {
	log, err := o.NewLog(os.Stderr)
	if err != nil {
		return err
	}
	addr, err := serve.ParseListen(o.Listen, o.TLSCert != "")
	if err != nil {
		return err
	}
	if addr.Kind != serve.ListenWebSocket {
		return fmt.Errorf("a gateway listens at ws://IP:PORT or wss://IP:PORT, not on %s", addr.Kind)
	}
	authenticator, certificate, err := o.Prepare(addr)
	if err != nil {
		return err
	}
	if err := o.checkClear(); err != nil {
		return err
	}
	routes, err := o.cluster.load()
	if err != nil {
		return err
	}
	audited, err := o.OpenAudit(log)
	if err != nil {
		return err
	}
	defer audited.Close()
	gateway := fleet.NewGateway(log)
	own, machines, closeFleet, err := o.openFleet(gateway, certificate, routes, log)
	if err != nil {
		return err
	}
	defer closeFleet()
	extensions := &extension.Options{Gateway: gateway}
	if o.Web {
		extensions.Page = web.New()
	}
	options := &server.Options{
		Log: log, Version: cli.Version(version), Auth: authenticator, Audit: audited,
		Extensions: extensions,
		Metrics:    func(s *server.Server) http.Handler { return metrics.GatewayHandler(s, gateway, own) },
	}
	o.ApplyAccess(options)
	srv := server.New(options)
	_, manager := serve.HandedOver()
	signals, hangups := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(signals, serve.Ending()...)
	signal.Notify(hangups, syscall.SIGHUP)
	cli.IgnoreBrokenPipes()
	ended := make(chan error, 2) // listeners
	if err := serve.Start(srv, log, addr, o.Flags, ended); err != nil {
		return err
	}
	reloading, stop := context.WithCancel(context.Background())
	defer stop()
	of := map[string]serve.Refresher{"credentials": authenticator, "TLS certificate": certificate, "certificate of the cluster": routes}
	if machines != nil {
		of["machines"] = recheckedMachines{machines, own}
	}
	go func() {
		serve.Reload(untilKnown(reloading, gateway), log, srv, audited, hangups, "", of) // a hangup does not make it ready
		manager.Say("READY=1")
		serve.Reload(reloading, log, srv, audited, hangups, manager, of)
	}()
	select {
	case received := <-signals:
		log.Info("shutting down", "signal", received.String())
	case err = <-ended:
	}
	manager.Say("STOPPING=1")
	gateway.Close()
	ctx, cancel := context.WithTimeout(context.Background(), serve.ShutdownTimeout)
	defer cancel()
	if timeout := srv.Shutdown(ctx); timeout != nil {
		log.Info("shutdown did not finish in time", "error", timeout)
	}
	return err
}

// knownInterval is how often a gateway that has just started looks whether it knows its
// machines. In a cluster that may take as long as the other servers do.
const knownInterval = 50 * time.Millisecond

// untilKnown returns a context that ends when the gateway knows its machines, or with ctx.
func untilKnown(ctx context.Context, gateway *fleet.Gateway) context.Context {
	known, end := context.WithCancel(ctx)
	go func() {
		defer end()
		ticker := time.NewTicker(knownInterval)
		defer ticker.Stop()
		for gateway.Ready() != nil {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return known
}

// recheckedMachines disconnects the machines that may not be connected any more, at every
// look at their file: tokens expire without a change.
type recheckedMachines struct {
	*broker.Machines
	broker *broker.Broker
}

func (r recheckedMachines) Refresh() (bool, error) { return r.recheck(r.Machines.Refresh()) }
func (r recheckedMachines) Poll() (bool, error)    { return r.recheck(r.Machines.Poll()) }

func (r recheckedMachines) recheck(changed bool, err error) (bool, error) {
	r.broker.Recheck()
	return changed, err
}

// openFleet connects a gateway with its machines. own is its NATS server, or nil.
func (o *gatewayOptions) openFleet(gateway *fleet.Gateway, certificate, routes *auth.Reloaded[*tls.Certificate], log *slog.Logger) (own *broker.Broker, machines *broker.Machines, closeAll func(), err error) {
	var closers []func()
	end := func() {
		for _, closer := range slices.Backward(closers) {
			closer()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	opts, err := o.signIn.options(o.nats, log)
	if err != nil {
		return nil, nil, nil, err
	}
	connect := func(string) (*nats.Conn, error) { return nats.Connect(strings.Join(o.nats, ","), opts...) }
	accounts, newName := []string{o.account}, func(string) bool { return false }
	if len(o.nats) == 0 {
		data, err := broker.OpenData(o.data)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("use --data: %w", sys.WrapError(err))
		}
		closers = append(closers, func() { _ = data.Close() }) // nothing was written to it
		var tokens *broker.Tokens
		if machines, tokens, err = o.readMachines(log); err != nil {
			return nil, nil, nil, err
		}
		if own, err = o.openBroker(machines, certificate, routes, log); err != nil {
			return nil, nil, nil, err
		}
		closers = append(closers, own.Close)
		if tokens != nil {
			gateway.MakeTokens(recheckedTokens{tokens, own})
			newName = tokens.New
		}
		accounts = machines.Accounts()
		connect = func(account string) (*nats.Conn, error) { return own.Connect(account, opts...) }
	}
	for _, account := range accounts {
		nc, err := connect(account)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("connect to NATS: %w", err)
		}
		closers = append(closers, nc.Close)
		registry, err := fleet.NewRegistry(nc, o.cluster.replicas, log, &natstransport.Options{Lost: gateway.Lost})
		if err != nil {
			return nil, nil, nil, fmt.Errorf("connect to NATS: %w", err)
		}
		closers = append(closers, registry.Close)
		registry.GrantNew(newName)
		gateway.Add(account, registry)
	}
	return own, machines, end, nil
}

// openBroker starts the own NATS server. certificate and routes are nil for none.
func (o *gatewayOptions) openBroker(machines *broker.Machines, certificate, routes *auth.Reloaded[*tls.Certificate], log *slog.Logger) (*broker.Broker, error) {
	settings := broker.Options{
		Data: o.data, Listen: o.fleetListen, Machines: machines, Accounts: machines.Accounts(), Log: log,
	}
	if err := o.cluster.apply(&settings, routes); err != nil {
		return nil, err
	}
	if certificate != nil {
		// The server sets GetConfigForClient itself. Machines have tokens, and need no certificate.
		settings.TLS = &tls.Config{
			MinVersion:     tls.VersionTLS12,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate.Get(), nil },
		}
	}
	own, err := broker.New(settings)
	if err != nil {
		return nil, err
	}
	for _, url := range []string{own.URL(), own.WebSocketURL()} {
		if url != "" {
			o.Say("exec-fleet on " + url)
		}
	}
	if url := own.ClusterURL(); url != "" {
		o.Say("exec-server cluster on " + url)
	}
	return own, nil
}

// readMachines reads which machines may join. Without a file, tokens is what lets clients make
// a token for each of them.
func (o *gatewayOptions) readMachines(log *slog.Logger) (machines *broker.Machines, tokens *broker.Tokens, err error) {
	if o.machines != "" {
		machines, err = broker.ReadMachines(o.machines)
		return machines, nil, err
	}
	if tokens, err = broker.OpenTokens(o.data); err != nil {
		return nil, nil, err
	}
	const shared = "join-token"
	if _, err := os.Lstat(filepath.Join(o.data, shared)); err == nil {
		log.Warn("this token does not hold any more, because it let each machine be every other one; make one for each machine with exec-fleet token NAME, and remove the file",
			"file", filepath.Join(o.data, shared))
	}
	return tokens.Machines, tokens, nil
}

// recheckedTokens disconnects a machine as soon as its token does not hold any more.
type recheckedTokens struct {
	*broker.Tokens
	broker *broker.Broker
}

func (t recheckedTokens) Make(name string) (string, error) {
	defer t.broker.Recheck()
	return t.Tokens.Make(name)
}

func (t recheckedTokens) Revoke(name string) (bool, error) {
	defer t.broker.Recheck()
	return t.Tokens.Revoke(name)
}
