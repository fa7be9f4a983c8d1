// Package metrics exports the metrics of a server in the text format of Prometheus. Only the
// command imports it.
//
// A scrape reads the counters of the server ([server.Server.Stats]), so metrics cost nothing
// between scrapes. docs/operations.md describes them. The package writes the format itself,
// because the client library would be a sixth of the program.
package metrics

import (
	"net/http"

	"execserver/protocol"
	"execserver/server"
)

// Handler returns the handler of a server's metrics, for server.Options.Metrics.
func Handler(s *server.Server) http.Handler {
	return Serve(func(t *Text) {
		stats := s.Stats()
		for _, m := range all {
			t.Begin(m.kind, m.name, m.help, m.labels...)
			m.write(&stats, t)
		}
	})
}

// metric is one metric with all its labels.
type metric struct {
	kind       Kind
	name, help string
	labels     []string
	write      func(s *server.Stats, t *Text)
}

// gauge returns a metric that goes up and down.
func gauge(name, help string, read func(*server.Stats) float64) *metric {
	return plain(Gauge, name, help, read)
}

// counter returns a metric that only grows.
func counter(name, help string, read func(*server.Stats) float64) *metric {
	return plain(Counter, name, help, read)
}

func plain(kind Kind, name, help string, read func(*server.Stats) float64) *metric {
	return labeled(kind, name, help, nil, func(s *server.Stats, add func(float64, ...string)) { add(read(s)) })
}

// labeled returns a metric with labels. read calls add with each value and its labels.
func labeled(kind Kind, name, help string, labels []string, read func(s *server.Stats, add func(float64, ...string))) *metric {
	return &metric{kind, name, help, labels, func(s *server.Stats, t *Text) { read(s, t.Add) }}
}

// durations returns a histogram of seconds.
func durations(name, help string, read func(*server.Stats) (count uint64, sum float64, atMost map[float64]uint64)) *metric {
	return &metric{Histogram, name, help, nil, func(s *server.Stats, t *Text) { t.AddHistogram(read(s)) }}
}

// Label values that are always exported, so that a rate begins at 0.
var (
	endings = []server.EndingResult{server.EndedWithSuccess, server.EndedWithFailure, server.EndedBySignal, server.EndedUnknown}
	enders  = []protocol.EndedBy{
		protocol.EndedBySelf, protocol.EndedByClient, protocol.EndedByTimeout, protocol.EndedByOutputLimit,
		protocol.EndedBySessionExpired, protocol.EndedByServerShutdown,
	}
	failures    = []server.StartFailure{server.StartRefused, server.StartInvalid, server.StartFailed}
	sandboxes   = []server.ConfinedFor{server.ConfinedProcess, server.ConfinedFiles}
	connections = []server.ConnectionState{
		server.ConnectionWaiting, server.ConnectionOwner, server.ConnectionObserver, server.ConnectionNoSession,
	}
	Refusals = []server.RefusalReason{
		server.RefusedHost, server.RefusedOrigin, server.RefusedTLS, server.RefusedUpgrade, server.RefusedCredentials,
		server.RefusedPeer, server.RefusedScope, server.RefusedHandshake, server.RefusedLimit,
		server.RefusedSession, server.RefusedAudit, server.RefusedShutdown,
	}
)

// all are the metrics of a server, in the order of docs/operations.md.
var all = []*metric{
	labeled(Gauge, "exec_server_build_info", "The version of the server; the value is always 1.", []string{"version"},
		func(s *server.Stats, add func(float64, ...string)) { add(1, s.Version) }),

	gauge("exec_server_processes", "Processes that have not exited.",
		func(s *server.Stats) float64 { return float64(s.Running) }),
	counter("exec_server_processes_started_total", "Processes that were started.",
		func(s *server.Stats) float64 { return float64(s.Started) }),
	labeled(Counter, "exec_server_processes_ended_total", "Processes that have exited, by how they ended and who ended them.",
		[]string{"ended_by", "result"}, func(s *server.Stats, add func(float64, ...string)) {
			for _, result := range endings {
				if result == server.EndedUnknown {
					add(float64(s.Endings[server.Ending{Result: result}]), "unknown", string(result))
					continue
				}
				for _, by := range enders {
					add(float64(s.Endings[server.Ending{Result: result, By: by}]), string(by), string(result))
				}
			}
		}),
	labeled(Counter, "exec_server_process_start_failures_total", "Requests to start a process that failed, by reason.",
		[]string{"reason"}, func(s *server.Stats, add func(float64, ...string)) {
			for _, reason := range failures {
				add(float64(s.StartsFailed[reason]), string(reason))
			}
		}),
	durations("exec_server_process_start_duration_seconds", "Time from the request to start a process to the running program, of requests that succeeded.",
		func(s *server.Stats) (uint64, float64, map[float64]uint64) {
			buckets := make(map[float64]uint64, len(s.StartsWithin))
			for bound, n := range s.StartsWithin {
				buckets[bound.Seconds()] = n
			}
			return s.Starts, s.StartTime.Seconds(), buckets
		}),
	labeled(Counter, "exec_server_sandboxes_total", "Sandboxes requested for processes and for file operations.",
		[]string{"for"}, func(s *server.Stats, add func(float64, ...string)) {
			for _, what := range sandboxes {
				add(float64(s.Confined[what]), string(what))
			}
		}),

	counter("exec_server_output_bytes_total", "Output read from processes.",
		func(s *server.Stats) float64 { return float64(s.OutputBytes) }),
	counter("exec_server_output_evicted_bytes_total", "Output evicted to make room after the client had acknowledged it.",
		func(s *server.Stats) float64 { return float64(s.OutputEvicted) }),
	counter("exec_server_output_dropped_bytes_total", "Output lost before a client acknowledged it.",
		func(s *server.Stats) float64 { return float64(s.OutputDropped) }),
	gauge("exec_server_output_retained_bytes", "Memory that holds output, of which a client may read again what it holds.",
		func(s *server.Stats) float64 { return float64(s.OutputRetained) }),
	gauge("exec_server_output_retained_limit_bytes", "Limit of the memory that holds output, at which processes block.",
		func(s *server.Stats) float64 { return float64(s.OutputLimit) }),
	counter("exec_server_output_stalls_total", "How often a stream of a process had to wait for room.",
		func(s *server.Stats) float64 { return float64(s.Stalls) }),
	gauge("exec_server_output_stalled_streams", "Streams of processes that wait for room.",
		func(s *server.Stats) float64 { return float64(s.Stalled) }),

	labeled(Gauge, "exec_server_sessions", "Sessions, by whether they have a connection.",
		[]string{"state"}, func(s *server.Stats, add func(float64, ...string)) {
			add(float64(s.SessionsAttached), "attached")
			add(float64(s.SessionsDetached), "detached")
		}),
	counter("exec_server_sessions_created_total", "Sessions created.",
		func(s *server.Stats) float64 { return float64(s.SessionsCreated) }),
	counter("exec_server_sessions_resumed_total", "How often a client resumed a session.",
		func(s *server.Stats) float64 { return float64(s.SessionsResumed) }),
	counter("exec_server_sessions_ended_total", "Sessions ended.",
		func(s *server.Stats) float64 { return float64(s.SessionsEnded) }),

	labeled(Gauge, "exec_server_connections", "Connections, by their relation to sessions.",
		[]string{"state"}, func(s *server.Stats, add func(float64, ...string)) {
			for _, state := range connections {
				add(float64(s.Connections[state]), string(state))
			}
		}),
	counter("exec_server_connections_opened_total", "Connections that were admitted.",
		func(s *server.Stats) float64 { return float64(s.Opened) }),
	labeled(Counter, "exec_server_refusals_total", "Connections and requests that were refused, by reason.",
		[]string{"reason"}, func(s *server.Stats, add func(float64, ...string)) {
			for _, reason := range Refusals {
				add(float64(s.Refusals[reason]), string(reason))
			}
		}),

	labeled(Counter, "exec_server_requests_total", "Requests of clients, by method; methods that nobody has called are absent.",
		[]string{"method"}, func(s *server.Stats, add func(float64, ...string)) {
			for method, n := range s.Requests {
				add(float64(n), method)
			}
		}),
	gauge("exec_server_file_operations", "File operations under way.",
		func(s *server.Stats) float64 { return float64(s.FileOperations) }),
	gauge("exec_server_forwarded_connections", "Network connections that are forwarded for clients.",
		func(s *server.Stats) float64 { return float64(s.Forwards) }),
	counter("exec_server_audit_lost_events_total", "Events that could not be written to the audit log.",
		func(s *server.Stats) float64 { return float64(s.AuditLost) }),

	labeled(Gauge, "exec_server_recordings", "Recordings of processes, by whether they are being written.",
		[]string{"state"}, func(s *server.Stats, add func(float64, ...string)) {
			add(float64(s.Recordings.Live), "live")
			add(float64(s.Recordings.Kept), "kept")
		}),
	gauge("exec_server_recordings_bytes", "Size of all recordings; small ones count more than their size.",
		func(s *server.Stats) float64 { return float64(s.Recordings.Bytes) }),
	labeled(Counter, "exec_server_recordings_stopped_total", "Recordings that ended before their process, by reason.",
		[]string{"reason"}, func(s *server.Stats, add func(float64, ...string)) {
			for _, reason := range server.RecordingStops {
				add(float64(s.Recordings.Stopped[reason]), reason)
			}
		}),
	counter("exec_server_recordings_missing_bytes_total", "Output that was evicted before the disk took it into a recording.",
		func(s *server.Stats) float64 { return float64(s.Recordings.Missing) }),
}
