//go:build !linux

package server

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"

	"execserver/protocol"
)

// How open opens a file.
const openRead, openReadNoFollow, openReplace, openUpdate = "", "", "", ""

func runHelper() {}

// call refuses: this system has no sandboxes.
func (h *fileSandbox) call(ctx context.Context, policy *protocol.Sandbox, _ string, _ json.RawMessage, _ int) (rawAnswer, error) {
	return nil, h.refuse(ctx, policy)
}

// open refuses.
func (h *fileSandbox) open(ctx context.Context, policy *protocol.Sandbox, _, _ string, _ fs.FileMode) (*os.File, error) {
	return nil, h.refuse(ctx, policy)
}

func (h *fileSandbox) refuse(ctx context.Context, policy *protocol.Sandbox) error {
	confinement, err := h.confine(ctx, policy)
	if err != nil {
		return err
	}
	h.release(confinement)
	return protocol.Errorf(protocol.CodeInternal, "%s", &noSandbox)
}
