//go:build !linux

package client

import "os"

func reserveRoom(*os.File, int64) error { return nil }
