//go:build otel

// Package tracing shows requests that carry a trace context as spans of OpenTelemetry, and
// sends them to a collector. It is built with the tag otel, and only the command imports it.
//
// Start at [New].
package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"execserver/internal/rpc"
	"execserver/protocol"
	"execserver/server"
)

// Tracer makes spans. Its methods may be called concurrently.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// New returns a Tracer that sends spans by OTLP over HTTP. The environment variables of
// OpenTelemetry (OTEL_EXPORTER_OTLP_ENDPOINT and the others) say where to and how, and which
// spans are sampled. A collector that does not answer delays nobody: the queue of spans is
// bounded, and further ones are lost. Errors go to log. The caller must call Close.
func New(version string, log *slog.Logger) (*Tracer, error) {
	ctx := context.Background()
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces", "error", err) }))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("send traces: %w", err)
	}
	described, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "exec-server"), attribute.String("service.version", version)),
		resource.WithHost(), resource.WithProcessPID(), resource.WithFromEnv())
	if err != nil { // as when a variable is malformed; the rest is there
		log.Warn("traces describe this server only in part", "error", err)
	}
	if protocol := os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		log.Warn("traces are sent by http/protobuf alone", "OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(exporter), sdk.WithResource(described))
	return &Tracer{provider, provider.Tracer("exec-server")}, nil
}

// Request is for server.Options.Trace. A context that is no valid traceparent makes no span.
func (t *Tracer) Request(r server.TracedRequest) (answered func(error)) {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{
		"traceparent": r.Context.Parent, "tracestate": r.Context.State,
	})
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return func(error) {}
	}
	_, span := t.tracer.Start(ctx, r.Method, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("rpc.system.name", "jsonrpc"),
		attribute.String("rpc.method", r.Method),
		attribute.String("network.peer.address", r.Remote),
		attribute.String("execserver.session.id", r.SessionID),
	))
	return func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
			if !errors.Is(err, rpc.ErrDropped) {
				span.SetAttributes(attribute.Int64("rpc.response.status_code", int64(protocol.AsError(err).Code)))
			}
		}
		span.End()
	}
}

// Close sends the spans that are not sent yet, until ctx ends.
func (t *Tracer) Close(ctx context.Context) error { return t.provider.Shutdown(ctx) }
