//go:build otel

package tracing_test

import (
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"execserver/internal/testkit"
	"execserver/internal/tracing"
	"execserver/server"
	"execserver/transport"
)

// A collector decodes what arrives at /v1/traces. It stands for a real one, such as Jaeger.
func collect(t *testing.T) <-chan *spans.Span {
	t.Helper()
	received := make(chan *spans.Span, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var export collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &export)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("the collector received %s: %v", r.URL.Path, err)
		}
		for _, of := range export.ResourceSpans {
			for _, scope := range of.ScopeSpans {
				for _, span := range scope.Spans {
					received <- span
				}
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(s.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
	return received
}

// TestSpans sends requests with and without a trace context.
func TestSpans(t *testing.T) {
	received := collect(t)
	tracer, err := tracing.New("v1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	srv := server.New(&server.Options{Trace: tracer.Request})
	ours, theirs := transport.Pipe(0)
	served := make(chan error, 1)
	go func() { served <- srv.ServeConn(theirs) }()

	const parent, remote = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	trace := fmt.Sprintf(`,"trace":{"traceparent":"00-%s-%s-01","tracestate":"vendor=1"}`, parent, remote)
	for i, request := range []string{
		`"method":"initialize","params":{"clientName":"test"}` + trace,
		`"method":"environment/info"` + trace,
		`"method":"environment/info"`,
		`"method":"environment/info","trace":{"traceparent":"nonsense"}`,
		`"method":"process/read","params":{"processId":"nobody"}` + trace,
		`"method":"hostile\u001b[31m"` + trace,
	} {
		if err := ours.Write([]byte(fmt.Sprintf(`{"id":%d,%s}`, i, request))); err != nil {
			t.Fatal(err)
		}
		if _, err := ours.Read(nil); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			if err := ours.Write([]byte(`{"method":"initialized"}`)); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = ours.Close(transport.Reason{})
	<-served
	if err := srv.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []struct {
		name   string
		failed bool
	}{{"initialize", false}, {"environment/info", false}, {"process/read", true}, {"unknown", true}}
	for _, want := range want {
		select {
		case span := <-received:
			if span.Name != want.name || (span.Status.GetCode() == spans.Status_STATUS_CODE_ERROR) != want.failed {
				t.Errorf("span %s with status %v, want %v", span.Name, span.Status, want)
			}
			if hex.EncodeToString(span.TraceId) != parent || hex.EncodeToString(span.ParentSpanId) != remote || span.TraceState != "vendor=1" {
				t.Errorf("span %s does not continue the client's trace: %v", span.Name, span)
			}
			if span.Kind != spans.Span_SPAN_KIND_SERVER || span.EndTimeUnixNano < span.StartTimeUnixNano {
				t.Errorf("span %v", span)
			}
		case <-time.After(testkit.Patience):
			t.Fatalf("no span %s came", want.name)
		}
	}
	select {
	case span := <-received:
		t.Errorf("another span came: %v", span)
	default:
	}
}
