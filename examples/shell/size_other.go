//go:build !unix

package main

import (
	"context"

	"execserver/client"
)

// followSize does nothing: this system has no signal for a new size.
func followSize(context.Context, *client.Cmd) (stop func()) { return func() {} }
