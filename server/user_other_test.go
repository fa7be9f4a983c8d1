//go:build !linux

package server_test

import "os"

func unixPeer() int { return os.Geteuid() }

func asUser(_ int, f func()) { f() }
