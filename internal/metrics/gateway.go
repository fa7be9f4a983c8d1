package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"execserver/internal/broker"
	"execserver/internal/fleet"
	"execserver/server"
)

// GatewayHandler returns the handler of a gateway's metrics, for server.Options.Metrics. own
// is its NATS server, or nil.
func GatewayHandler(s *server.Server, gateway *fleet.Gateway, own *broker.Broker) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		gatewayCollector{s, gateway, own},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, ErrorHandling: promhttp.ContinueOnError})
}

// gatewayCollector makes metrics of the counts of a gateway.
type gatewayCollector struct {
	server  *server.Server
	gateway *fleet.Gateway
	broker  *broker.Broker
}

// The metrics of a gateway, in the order of docs/fleet.md.
var (
	gatewayConnections = prometheus.NewDesc("exec_gateway_connections", "Connections of clients to machines.", nil, nil)
	gatewayOpened      = prometheus.NewDesc("exec_gateway_connections_opened_total", "Connections of clients to machines so far.", nil, nil)
	gatewayPlaced      = prometheus.NewDesc("exec_gateway_placed_total", "Connections for which the gateway chose the machine.", nil, nil)
	gatewayBytes       = prometheus.NewDesc("exec_gateway_relayed_bytes_total", "Bytes of messages that were passed on, by direction.", []string{"to"}, nil)
	gatewayHeld        = prometheus.NewDesc("exec_gateway_large_message_bytes", "Memory of large messages on their way.", nil, nil)
	gatewayRefusals    = prometheus.NewDesc("exec_gateway_refusals_total", "Requests that led to no machine, by reason.", []string{"reason"}, nil)
	gatewayLost        = prometheus.NewDesc("exec_gateway_connections_lost_total", "Connections that ended because the gateway lost NATS.", nil, nil)
	gatewayMachines    = prometheus.NewDesc("exec_gateway_machines", "Machines of an account, by whether they take new sessions.", []string{"account", "state"}, nil)
	doorRefusals       = prometheus.NewDesc("exec_server_refusals_total", "Connections and requests that were refused, by reason.", []string{"reason"}, nil)
	natsClients        = prometheus.NewDesc("exec_gateway_nats_clients", "Clients of the gateway's own NATS server, with the gateway itself.", nil, nil)
	natsRoutes         = prometheus.NewDesc("exec_gateway_nats_routes", "Connections to other NATS servers of the cluster.", nil, nil)
	natsSlow           = prometheus.NewDesc("exec_gateway_nats_slow_consumers_total", "Clients that the NATS server disconnected because they did not read.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c gatewayCollector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		gatewayConnections, gatewayOpened, gatewayPlaced, gatewayBytes, gatewayHeld, gatewayRefusals, gatewayLost,
		gatewayMachines, doorRefusals, natsClients, natsRoutes, natsSlow,
	} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (c gatewayCollector) Collect(to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	counter := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, labels...)
	}
	n := c.gateway.Counts()
	gauge(gatewayConnections, float64(n.Relays))
	counter(gatewayOpened, float64(n.Relayed))
	counter(gatewayPlaced, float64(n.Placed))
	counter(gatewayBytes, float64(n.ToMachines), "machines")
	counter(gatewayBytes, float64(n.ToClients), "clients")
	gauge(gatewayHeld, float64(n.Held))
	counter(gatewayRefusals, float64(n.Unknown), "unknown")
	counter(gatewayRefusals, float64(n.Denied), "denied")
	counter(gatewayRefusals, float64(n.Failed), "failed")
	counter(gatewayLost, float64(n.Lost))
	for account, machines := range n.Machines {
		gauge(gatewayMachines, float64(machines-n.Draining[account]), account, "serving")
		gauge(gatewayMachines, float64(n.Draining[account]), account, "draining")
	}
	refused := c.server.Stats().Refusals
	for _, reason := range refusals {
		counter(doorRefusals, float64(refused[reason]), string(reason))
	}
	if c.broker != nil {
		clients, routes := c.broker.Clients()
		gauge(natsClients, float64(clients))
		gauge(natsRoutes, float64(routes))
		counter(natsSlow, float64(c.broker.SlowConsumers()))
	}
}
