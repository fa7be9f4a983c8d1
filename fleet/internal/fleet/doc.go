// Package fleet makes machines that dial out to NATS reachable at a gateway. docs/fleet.md
// describes the whole.
//
// A machine calls [Join]: it asks a gateway to register its name in a bucket of JetStream,
// which its heartbeats keep there, and accepts connections with package natstransport. A
// gateway has a [Roster] for each account, which follows the bucket, and a [Gateway], the
// http.Handler part that finds the machine of a request and passes messages on between the
// WebSocket and NATS. A gateway has no state of its own: what machines there are is in the
// bucket, and what they run is at the machines.
package fleet
