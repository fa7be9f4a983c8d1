//go:build !unix

package client

import (
	"context"
	"io"
	"os"
)

// stoppable returns the file itself: a Read of it cannot be taken back.
func stoppable(_ context.Context, f *os.File) (r io.Reader, release func()) { return f, func() {} }
