//go:build race

package testkit

// RaceEnabled reports whether the race detector is on. With it, everything takes many
// times as long.
const RaceEnabled = true
