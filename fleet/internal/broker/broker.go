// Package broker runs the NATS server of a gateway in its own process. Only the command
// imports it, because a NATS server is large. docs/fleet.md describes what it is for.
//
// Each account of the fleet is an account of NATS, whose clients see nothing of others. A
// machine signs in with its name and a token ([Machines]), and may use the subjects of its
// name and no others.
package broker

import (
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"execserver/fleet/internal/fleet"
	"execserver/fleet/natstransport"
)

// Options of a broker.
type Options struct {
	Name     string   // in the cluster; default is a random one
	Data     string   // its directory
	Listen   []string // nats://IP:PORT, ws://IP:PORT or wss://IP:PORT; at most one for each kind
	Machines *Machines
	Accounts []string
	TLS      *tls.Config // for nats:// and wss://; nil for none
	Log      *slog.Logger
	SignIn   time.Duration // for which a connection may take to sign in; default 5 seconds

	// A cluster has a name, an address to listen at, the addresses of other servers, and a
	// secret that all of them have. ClusterTLS serves both ends of a route; nil is for none.
	// Servers tell each other where they listen, or ClusterAdvertise (HOST:PORT) instead.
	Cluster, ClusterListen, ClusterAdvertise string
	Routes                                   []string
	Secret                                   string
	ClusterTLS                               *tls.Config
}

// startTimeout bounds how long a server may take until it listens.
const startTimeout = 20 * time.Second

// Broker is a NATS server in this process. Its methods may be called concurrently.
type Broker struct {
	server *server.Server
	secret string // with which Connect signs in
	opts   Options

	webSocket bool // it listens for NATS over WebSocket

	refusals fleet.LogLimit // of the log

	mu sync.Mutex
	in map[uint64]signedIn // machines by the number of their connection, with those that went since Recheck
}

// signedIn is how a machine has signed in.
type signedIn struct {
	name, account string
	token         digest
}

// New starts a broker. The caller must close it.
func New(opts Options) (*Broker, error) {
	b := &Broker{secret: rand.Text(), opts: opts, refusals: fleet.LogLimit{Pause: refusalPause}, in: make(map[uint64]signedIn)}
	config, err := b.config()
	if err != nil {
		return nil, err
	}
	config.CustomClientAuthentication = b
	b.server, err = server.NewServer(config)
	if err != nil {
		return nil, fmt.Errorf("start the NATS server: %w", err)
	}
	b.server.SetLoggerV2(&logger{log: opts.Log}, false, false, false)
	b.server.Start()
	if !b.server.ReadyForConnections(startTimeout) {
		b.Close()
		return nil, errors.New("start the NATS server: it does not listen; the log may say why")
	}
	return b, nil
}

// config makes the options of the server.
func (b *Broker) config() (*server.Options, error) {
	accounts := new(strings.Builder)
	for _, name := range b.opts.Accounts {
		fmt.Fprintf(accounts, "%q: {jetstream: enabled}\n", name)
	}
	config := new(server.Options)
	if err := config.ProcessConfigString("accounts {\n" + accounts.String() + "}\n"); err != nil {
		return nil, fmt.Errorf("start the NATS server: %w", err)
	}
	config.ServerName = b.opts.Name
	config.JetStream, config.StoreDir = true, b.opts.Data
	config.NoSigs, config.DontListen = true, true
	config.WriteDeadline = 5 * time.Second
	config.AuthTimeout = b.opts.SignIn.Seconds()
	if config.AuthTimeout == 0 {
		config.AuthTimeout = 5 // with the default of two, a busy machine may not sign in
	}
	// A machine sends one message at a time for each of its connections, so 1 MiB is plenty.
	config.MaxPayload = 1 << 20
	// The connection of the gateway itself has a subscription for each client. Recheck bounds
	// those of machines.
	config.MaxSubs = 20_000
	for _, text := range b.opts.Listen {
		if err := b.listen(config, text); err != nil {
			return nil, err
		}
	}
	if b.opts.ClusterListen != "" {
		return config, b.cluster(config)
	}
	return config, nil
}

// listen makes the server listen at an address.
func (b *Broker) listen(config *server.Options, text string) error {
	u, host, port, err := address(text)
	if err != nil {
		return err
	}
	if err := free(text, host, port); err != nil {
		return err
	}
	switch u.Scheme {
	case "nats":
		config.DontListen, config.Host, config.Port = false, host, port
		if b.opts.TLS != nil {
			config.TLS, config.TLSConfig, config.TLSTimeout = true, b.opts.TLS, 5
		}
	case "wss":
		b.webSocket = true
		if b.opts.TLS == nil {
			return fmt.Errorf("%s needs a certificate", text)
		}
		config.Websocket = server.WebsocketOpts{Host: host, Port: port, TLSConfig: b.opts.TLS}
	case "ws":
		b.webSocket = true
		config.Websocket = server.WebsocketOpts{Host: host, Port: port, NoTLS: true}
	default:
		return fmt.Errorf("machines cannot join at %s; expected nats://IP:PORT, ws://IP:PORT or wss://IP:PORT", text)
	}
	return nil
}

// address takes a URL to listen at apart. The port 0 is a free one.
func address(text string) (u *url.URL, host string, port int, err error) {
	u, err = url.Parse(text)
	if err != nil || u.Port() == "" || u.Path != "" || u.User != nil {
		return nil, "", 0, fmt.Errorf("cannot listen at %q; expected SCHEME://IP:PORT", text)
	}
	port, err = strconv.Atoi(u.Port())
	if port == 0 {
		port = server.RANDOM_PORT
	}
	return u, u.Hostname(), port, err
}

// routePing is the time between two signs of life on a route.
const routePing = time.Second

// free returns why nothing can listen at an address: the server would only log it.
func free(text, host string, port int) error {
	if port == server.RANDOM_PORT {
		return nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		if inner, ok := errors.AsType[*net.OpError](err); ok {
			err = inner.Err
		}
		return fmt.Errorf("listen on %s: %w", text, err)
	}
	return l.Close()
}

// cluster makes the server one of a cluster.
func (b *Broker) cluster(config *server.Options) error {
	_, host, port, err := address(b.opts.ClusterListen)
	if err != nil {
		return err
	}
	if err := free(b.opts.ClusterListen, host, port); err != nil {
		return err
	}
	config.Cluster = server.ClusterOpts{
		Name: b.opts.Cluster, Host: host, Port: port, Advertise: b.opts.ClusterAdvertise,
		Username: "route", Password: b.opts.Secret, AuthTimeout: 5,
		TLSConfig: b.opts.ClusterTLS, TLSTimeout: 5,
		// A route that has gone silent ends after three intervals: before the connections over
		// it do, so that they are made anew on another way. The default is six minutes.
		PingInterval: routePing, MaxPingsOut: 2,
	}
	for _, text := range b.opts.Routes {
		u, _, _, err := address(text)
		if err != nil {
			return err
		}
		u.User = url.UserPassword("route", b.opts.Secret)
		config.Routes = append(config.Routes, u)
	}
	return nil
}

// userGateway begins the user names of the gateway itself, which are followed by an
// account. No machine can have such a name.
const userGateway = "gateway:"

// Check implements server.Authentication.
func (b *Broker) Check(client server.ClientAuthentication) bool {
	given := client.GetOpts()
	if name, ok := strings.CutPrefix(given.Username, userGateway); ok {
		if subtle.ConstantTimeCompare([]byte(given.Password), []byte(b.secret)) != 1 {
			return false
		}
		return b.register(client, given.Username, name, nil)
	}
	token, account, ok := b.opts.Machines.signIn(given.Username, given.Password)
	if !ok {
		b.logRefusal(given.Username, client.RemoteAddress())
		return false
	}
	if !b.register(client, given.Username, account, machinePermissions(given.Username)) {
		return false
	}
	b.admit(client.GetID(), signedIn{given.Username, account, token})
	return true
}

// maxMachineConnections is how many connections a machine may have: one, and those that have
// broken without a word. What a client sends goes to each of them, and waits in memory for
// those that do not read.
const maxMachineConnections = 8

// admit remembers a machine, and disconnects its oldest connection if there are too many.
func (b *Broker) admit(id uint64, as signedIn) {
	b.mu.Lock()
	var own []uint64
	for other, is := range b.in {
		if is.name == as.name && is.account == as.account {
			own = append(own, other)
		}
	}
	b.in[id] = as
	b.mu.Unlock()
	if len(own) >= maxMachineConnections {
		oldest := slices.Min(own)
		_ = b.server.DisconnectClientByID(oldest) // it may have gone
		b.forget(oldest)
	}
}

// refusalPause is the least time between two lines of the log about refused machines.
const refusalPause = time.Second

// logRefusal logs that a machine could not sign in.
func (b *Broker) logRefusal(name string, remote net.Addr) {
	if suppressed, ok := b.refusals.Allow(); ok {
		b.opts.Log.Warn("machine refused", "name", printableName(name), "remote", fmt.Sprint(remote), "reason", "wrong name or token", "suppressed", suppressed)
	}
}

// maxMachineSubscriptions is far above what a machine needs: four.
const maxMachineSubscriptions = 16

// Recheck disconnects the machines that could not sign in any more as they did: their token
// is gone, has expired or belongs to another account now. It disconnects those with too many
// subscriptions, too, which the memory of every server of the cluster holds. It must be
// called again and again.
func (b *Broker) Recheck() {
	machines := b.machines()
	for id, as := range machines {
		if b.server.GetClient(id) == nil {
			b.forget(id)
		} else if account, still := b.opts.Machines.account(as.name, as.token); !still || account != as.account {
			b.disconnect(id, as.name, "its token has been revoked, has changed or has expired")
		}
	}
	// Those of the gateway itself, one for each account, may come first.
	greedy, err := b.server.Connz(&server.ConnzOptions{Sort: server.BySubs, Limit: 64 + len(b.opts.Accounts)})
	if err != nil {
		b.opts.Log.Error("cannot list the clients of the NATS server", "error", err)
		return
	}
	for _, conn := range greedy.Conns {
		if as, machine := machines[conn.Cid]; machine && conn.NumSubs > maxMachineSubscriptions {
			b.disconnect(conn.Cid, as.name, "it has too many subscriptions")
		}
	}
}

// machines returns the machines that have signed in. The lock is not held while the server
// is asked, which calls Check.
func (b *Broker) machines() map[uint64]signedIn {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.in)
}

func (b *Broker) disconnect(id uint64, name, reason string) {
	b.opts.Log.Warn("machine disconnected", "name", name, "reason", reason)
	_ = b.server.DisconnectClientByID(id) // it may have gone
	b.forget(id)
}

func (b *Broker) forget(id uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.in, id)
}

// printableName returns a name for the log.
func printableName(name string) string {
	if natstransport.ValidName(name) {
		return name
	}
	return "(not a name)"
}

func (b *Broker) register(client server.ClientAuthentication, user, account string, may *server.Permissions) bool {
	a, err := b.server.LookupAccount(account)
	if err != nil {
		b.opts.Log.Error("the account of a machine came after the start; start the gateway again", "account", account)
		return false
	}
	client.RegisterUser(&server.User{Username: user, Account: a, Permissions: may})
	return true
}

// inboxGateway is the prefix of the subjects at which gateways receive answers. Those of a
// machine begin with its name, which could be any text behind the usual prefix.
const inboxGateway = "_GATEWAY"

// Connect connects to the broker as the gateway itself, in an account.
func (b *Broker) Connect(account string, opts ...nats.Option) (*nats.Conn, error) {
	opts = append(opts, nats.InProcessServer(b.server), nats.UserInfo(userGateway+account, b.secret), nats.CustomInboxPrefix(inboxGateway))
	return nats.Connect("", opts...)
}

// URL returns the address at which machines join over TCP: nats://IP:PORT; "" for none.
func (b *Broker) URL() string {
	if addr, ok := b.server.Addr().(*net.TCPAddr); ok {
		return "nats://" + addr.String()
	}
	return ""
}

// WebSocketURL returns the address at which machines join over WebSocket; "" for none.
func (b *Broker) WebSocketURL() string {
	if !b.webSocket {
		return ""
	}
	return b.server.WebsocketURL()
}

// ClusterURL returns the address for other servers of the cluster; "" for none.
func (b *Broker) ClusterURL() string {
	if addr := b.server.ClusterAddr(); addr != nil {
		return "nats://" + addr.String()
	}
	return ""
}

// Clients returns how many clients are connected to the broker, with those of the gateway
// itself, and how many servers of its cluster.
func (b *Broker) Clients() (clients, routes int) { return b.server.NumClients(), b.server.NumRoutes() }

// SlowConsumers returns how many clients the broker has disconnected because they did not
// take what was sent to them.
func (b *Broker) SlowConsumers() int64 { return b.server.NumSlowConsumers() }

// Close stops the server and waits for it.
func (b *Broker) Close() {
	b.server.Shutdown()
	b.server.WaitForShutdown()
}
