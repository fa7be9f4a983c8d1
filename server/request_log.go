package server

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"execserver/internal/rpc"
	"execserver/protocol"
)

// maxLoggedBytes bounds a text of the client's in the log.
const maxLoggedBytes = 256

// logRequest logs a request when it is answered, or when its connection ends before the
// answer, if the log has the level debug. The reader calls it before it serves the request.
func (c *connection) logRequest(r *rpc.Request) {
	if !c.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	method := r.Method
	if _, known := methods[method]; !known {
		method = unknownMethod // the error names it
	}
	log := c.log.With("method", method, "id", r.ID.String())
	if c.session != nil {
		log = log.With("sessionId", c.session.ID)
	}
	if id := processOf(r); id != "" {
		log = log.With("processId", id)
	}
	if r.Trace.Parent != "" {
		log = log.With("traceparent", cut(r.Trace.Parent))
	}
	arrived := time.Now()
	r.Then(func(err error) {
		if err != nil {
			log = log.With("error", cut(err.Error()))
		}
		log.Debug("request", "duration", time.Since(arrived))
	})
}

// processOf returns the process that a request names, or "".
func processOf(r *rpc.Request) string {
	p, err := protocol.DecodeParams[struct {
		ProcessID string `json:"processId" wire:"identifier"`
	}](r.Params)
	if err != nil {
		return ""
	}
	return p.ProcessID
}

// cut returns the beginning of a text that may be long.
func cut(text string) string {
	if len(text) <= maxLoggedBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxLoggedBytes], "") + "…"
}
