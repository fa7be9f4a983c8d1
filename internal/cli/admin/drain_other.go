//go:build !linux

package admin

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
)

// runningServer is a server that this system cannot drain.
type runningServer struct{}

var errCannotDrain = errors.New("this system cannot make sure that a process is a server; send SIGUSR2 to it yourself")

func openServer(int, *cobra.Command) (*runningServer, error) { return nil, errCannotDrain }

func serverOf(context.Context, string) (int, error) { return 0, errCannotDrain }

func (*runningServer) drain() error { return errCannotDrain }

func (*runningServer) wait(context.Context) error { return errCannotDrain }

func (*runningServer) close() {}
