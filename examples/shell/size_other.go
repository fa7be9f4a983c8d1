//go:build !unix

package main

import (
	"context"

	"execserver/client"
)

// followSize does nothing here: there is no signal that tells of a new size.
func followSize(context.Context, *client.Cmd) (stop func()) { return func() {} }
