//go:build race

package testkit

// RaceEnabled says that the race detector is on: everything takes many times as
// long.
const RaceEnabled = true
