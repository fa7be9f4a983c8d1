package metrics

import (
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Kind is the kind of a metric.
type Kind string

// The kinds of metrics.
const (
	Gauge     Kind = "gauge"   // goes up and down
	Counter   Kind = "counter" // only grows
	Histogram Kind = "histogram"
)

// Text is a scrape in the text format of Prometheus, version 0.0.4. Only one goroutine may
// use it.
type Text struct {
	b      []byte
	name   string
	labels []string
}

// Begin begins a metric whose values have the given labels.
func (t *Text) Begin(kind Kind, name, help string, labels ...string) {
	t.name, t.labels = name, labels
	t.b = append(t.b, "# HELP "+name+" "+escape(help, false)+"\n# TYPE "+name+" "+string(kind)+"\n"...)
}

// Add adds a value of the metric that was begun last, with the values of its labels in
// their order.
func (t *Text) Add(value float64, values ...string) { t.sample("", t.labels, values, value) }

// AddHistogram adds the values of a histogram: their count, their sum, and for each bound the
// number of values up to it.
func (t *Text) AddHistogram(count uint64, sum float64, atMost map[float64]uint64) {
	bounds := make([]float64, 0, len(atMost))
	for bound := range atMost {
		bounds = append(bounds, bound)
	}
	slices.Sort(bounds)
	le := []string{"le"}
	for _, bound := range bounds {
		t.sample("_bucket", le, []string{number(bound)}, float64(atMost[bound]))
	}
	t.sample("_bucket", le, []string{"+Inf"}, float64(count))
	t.sample("_sum", nil, nil, sum)
	t.sample("_count", nil, nil, float64(count))
}

func (t *Text) sample(suffix string, labels, values []string, value float64) {
	t.b = append(t.b, t.name+suffix...)
	for i, label := range labels {
		t.b = append(t.b, "{,"[min(i, 1)])
		t.b = append(t.b, label+`="`+escape(values[i], true)+`"`...)
	}
	if len(labels) > 0 {
		t.b = append(t.b, '}')
	}
	t.b = append(t.b, " "+number(value)+"\n"...)
}

func number(value float64) string { return strconv.FormatFloat(value, 'g', -1, 64) }

// escape escapes a help text, or, with double quotes, the value of a label.
func escape(text string, quoted bool) string {
	text = strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(strings.ToValidUTF8(text, "\uFFFD"))
	if quoted {
		text = strings.ReplaceAll(text, `"`, `\"`)
	}
	return text
}

// Serve returns a handler of the metrics that write adds at each scrape, and of metrics of
// this process.
func Serve(write func(*Text)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var t Text
		write(&t)
		t.addProcess()
		t.Begin(Gauge, "go_goroutines", "Goroutines that exist.")
		t.Add(float64(runtime.NumGoroutine()))
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(t.b) // the client may have gone
	})
}
