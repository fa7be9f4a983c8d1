//go:build otel

package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"execserver/internal/tracing"
	"execserver/server"
)

// lastSpans is how long the program waits at its end for a collector of traces.
const lastSpans = time.Second

// traceRequests has the server send spans if the environment names a collector. The caller
// must call end.
func traceRequests(to *server.Options, log *slog.Logger) (end func(), err error) {
	if cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT")) == "" ||
		strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return func() {}, nil
	}
	tracer, err := tracing.New(to.Version, log)
	if err != nil {
		return nil, err
	}
	to.Trace = tracer.Request
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), lastSpans)
		defer cancel()
		if err := tracer.Close(ctx); err != nil {
			log.Warn("the last traces were not sent", "error", err)
		}
	}, nil
}
