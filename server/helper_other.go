//go:build !linux

package server

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"

	"execserver/protocol"
)

// How openConfined opens a file.
const openRead, openReadNoFollow, openReplace, openUpdate = "", "", "", ""

func runHelper() {}

// callConfined refuses: this system has no sandboxes.
func (c *connection) callConfined(ctx context.Context, policy *protocol.Sandbox, _ string, _ json.RawMessage, _ int) (rawAnswer, error) {
	return nil, c.refuseConfined(ctx, policy)
}

// openConfined refuses.
func (c *connection) openConfined(ctx context.Context, policy *protocol.Sandbox, _, _ string, _ fs.FileMode) (*os.File, error) {
	return nil, c.refuseConfined(ctx, policy)
}

func (c *connection) refuseConfined(ctx context.Context, policy *protocol.Sandbox) error {
	confinement, err := c.confine(ctx, policy)
	if err != nil {
		return err
	}
	c.unconfine(confinement)
	return protocol.Errorf(protocol.CodeInternal, "%s", &noSandbox)
}
