//go:build race && linux

package doors

// raceEnabled says that everything takes many times as long.
const raceEnabled = true
