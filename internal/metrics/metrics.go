// Package metrics shows what a server does in the format of Prometheus. Only the command
// imports it, so that programs that embed a server do not depend on Prometheus.
//
// The server counts by itself ([server.Server.Stats]); a scrape reads the counts. So
// metrics cost nothing between scrapes. docs/metrics.md describes them.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"execserver/server"
)

// Handler returns the handler of a server's metrics, for server.Options.Metrics.
func Handler(s *server.Server) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collector{s.Stats},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, // a scrape takes milliseconds; more are of no use to anybody
		ErrorHandling:       promhttp.ContinueOnError,
	})
}

// collector makes metrics of the counts of a server.
type collector struct {
	stats func() server.Stats
}

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range all {
		to <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	s := c.stats()
	for _, m := range all {
		m.collect(m, &s, to)
	}
}

// metric is one metric with all its labels.
type metric struct {
	desc    *prometheus.Desc
	collect func(m *metric, s *server.Stats, to chan<- prometheus.Metric)
}

// gauge returns a metric that goes up and down.
func gauge(name, help string, read func(*server.Stats) float64) *metric {
	return plain(prometheus.GaugeValue, name, help, read)
}

// counter returns a metric that only grows.
func counter(name, help string, read func(*server.Stats) float64) *metric {
	return plain(prometheus.CounterValue, name, help, read)
}

func plain(kind prometheus.ValueType, name, help string, read func(*server.Stats) float64) *metric {
	return labeled(kind, name, help, nil, func(s *server.Stats, add func(float64, ...string)) { add(read(s)) })
}

// labeled returns a metric with labels. read calls add with each value and its labels.
func labeled(kind prometheus.ValueType, name, help string, labels []string, read func(s *server.Stats, add func(float64, ...string))) *metric {
	return &metric{
		desc: prometheus.NewDesc(name, help, labels, nil),
		collect: func(m *metric, s *server.Stats, to chan<- prometheus.Metric) {
			read(s, func(value float64, labels ...string) {
				to <- prometheus.MustNewConstMetric(m.desc, kind, value, labels...)
			})
		},
	}
}

// durations returns a histogram of seconds.
func durations(name, help string, read func(*server.Stats) (count uint64, sum float64, atMost map[float64]uint64)) *metric {
	return &metric{
		desc: prometheus.NewDesc(name, help, nil, nil),
		collect: func(m *metric, s *server.Stats, to chan<- prometheus.Metric) {
			count, sum, atMost := read(s)
			to <- prometheus.MustNewConstHistogram(m.desc, count, sum, atMost)
		},
	}
}
