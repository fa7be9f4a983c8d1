//go:build !linux

package main

import "errors"

// predecessor finds nothing: this system does not say enough about its boots and its hardware.
type predecessor struct{ instance string }

type host struct{}

func thisHost() host { return host{} }

func stateHome() (string, error) { return "", errors.ErrUnsupported }

func findPredecessor(string, string, []string, host) (*predecessor, error) {
	return nil, errors.ErrUnsupported
}

func (*predecessor) write(string) error { return nil }
