// Package metrics shows what a server does in the text format of Prometheus. Only the
// command imports it.
//
// The server counts by itself ([server.Server.Stats]); a scrape reads the counts. So
// metrics cost nothing between scrapes. docs/metrics.md describes them. The format is
// written here, because the library for it would be a sixth of the program.
package metrics

import (
	"net/http"

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
