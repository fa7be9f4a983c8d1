// Package metrics makes metrics of a gateway.
package metrics

import (
	"net/http"

	"execserver/fleet/internal/broker"
	"execserver/fleet/internal/fleet"
	"execserver/internal/metrics"
	"execserver/server"
)

// GatewayHandler returns the handler of a gateway's metrics, for server.Options.Metrics. own
// is its NATS server, or nil. The metrics come in the order of docs/fleet.md.
func GatewayHandler(s *server.Server, gateway *fleet.Gateway, own *broker.Broker) http.Handler {
	return metrics.Serve(func(t *metrics.Text) {
		gauge := func(name, help string, value float64) {
			t.Begin(metrics.Gauge, name, help)
			t.Add(value)
		}
		counter := func(name, help string, value float64) {
			t.Begin(metrics.Counter, name, help)
			t.Add(value)
		}
		n := gateway.Counts()
		gauge("exec_gateway_connections", "Connections of clients to machines.", float64(n.Relays))
		counter("exec_gateway_connections_opened_total", "Connections of clients to machines so far.", float64(n.Relayed))
		counter("exec_gateway_placed_total", "Connections for which the gateway chose the machine.", float64(n.Placed))
		t.Begin(metrics.Counter, "exec_gateway_relayed_bytes_total", "Bytes of messages that were passed on, by direction.", "to")
		t.Add(float64(n.ToMachines), "machines")
		t.Add(float64(n.ToClients), "clients")
		gauge("exec_gateway_large_message_bytes", "Memory of large messages on their way.", float64(n.Held))
		t.Begin(metrics.Counter, "exec_gateway_refusals_total", "Requests that led to no machine, by reason.", "reason")
		t.Add(float64(n.Unknown), "unknown")
		t.Add(float64(n.Denied), "denied")
		t.Add(float64(n.Failed), "failed")
		counter("exec_gateway_connections_lost_total", "Connections that ended because the gateway lost NATS.", float64(n.Lost))
		t.Begin(metrics.Gauge, "exec_gateway_machines", "Machines of an account, by whether they take new sessions.", "account", "state")
		for account, machines := range n.Machines {
			t.Add(float64(machines-n.Draining[account]), account, "serving")
			t.Add(float64(n.Draining[account]), account, "draining")
		}
		refused := s.Stats().Refusals
		t.Begin(metrics.Counter, "exec_server_refusals_total", "Connections and requests that were refused, by reason.", "reason")
		for _, reason := range metrics.Refusals {
			t.Add(float64(refused[reason]), string(reason))
		}
		if own != nil {
			clients, routes := own.Clients()
			gauge("exec_gateway_nats_clients", "Clients of the gateway's own NATS server, with the gateway itself.", float64(clients))
			gauge("exec_gateway_nats_routes", "Connections to other NATS servers of the cluster.", float64(routes))
			counter("exec_gateway_nats_slow_consumers_total", "Clients that the NATS server disconnected because they did not read.", float64(own.SlowConsumers()))
		}
	})
}
