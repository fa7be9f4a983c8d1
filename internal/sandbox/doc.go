// Package sandbox confines programs as clients request (PROTOCOL.md, "Sandbox";
// docs/sandbox.md explains how).
//
// Start at [Engine.Confine]. resolve turns a policy of the wire into a plan of mounts,
// and the plan becomes a [Confinement]. [Confinement.Launch] prepares what to start: this
// program as a launcher (package launcher), directly or within bubblewrap.
package sandbox
