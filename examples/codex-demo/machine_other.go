//go:build !linux

package main

import (
	"errors"
	"os/exec"
)

// initMachine does nothing on this system.
func initMachine() {}

// machineCommand fails on this system.
func machineCommand(machine) (*exec.Cmd, error) {
	return nil, errors.New("this system allows no other machine")
}
