// Package sandbox confines programs as clients ask for it (PROTOCOL.md,
// "Sandbox"; docs/sandbox.md tells how).
//
// Start at [Engine.Confine]: a policy of the wire becomes a plan of mounts, by
// resolve, and the plan a [Confinement], from which [Confinement.Launch] makes
// what is to be started: this program as a launcher (package launcher), directly
// or within bubblewrap.
package sandbox
