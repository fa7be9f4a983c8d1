//go:build !linux

package server

import (
	"context"
	"encoding/json"
	"os"

	"execserver/filesystem"
	"execserver/protocol"
)

// callConfined refuses: there are no sandboxes here.
func (s *Server) callConfined(ctx context.Context, policy *protocol.Sandbox, _ string, _ json.RawMessage) (rawAnswer, error) {
	return nil, s.refuseConfined(ctx, policy)
}

// openConfined refuses.
func (s *Server) openConfined(ctx context.Context, policy *protocol.Sandbox, _ string, _ filesystem.HandleMode) (*os.File, error) {
	return nil, s.refuseConfined(ctx, policy)
}

func (s *Server) refuseConfined(ctx context.Context, policy *protocol.Sandbox) error {
	confinement, err := s.confine(ctx, policy)
	if err != nil {
		return err
	}
	s.release(confinement)
	return protocol.Errorf(protocol.CodeInternal, "%s", &noSandbox)
}
