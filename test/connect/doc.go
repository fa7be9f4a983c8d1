// Package connect tests the command connect as people use it: over a real sshd on loopback,
// to accounts of which one has nothing but a busybox in an otherwise empty root. The
// accounts exist in a mount namespace of the tests, which only root can have, so everybody
// else's tests are skipped.
//
// docker, podman and kubectl have stand-ins, which say so: only the command lines are
// tested.
package connect
