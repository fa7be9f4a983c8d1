//go:build race

package server_test

// raceEnabled says that everything takes many times as long.
const raceEnabled = true
