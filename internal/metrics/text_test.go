package metrics

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestText checks what the format says of order and quotes.
func TestText(t *testing.T) {
	var text Text
	text.Begin(Gauge, "a", "A \\ and\nmore.", "x", "y")
	text.Add(1e9, "with \"quotes\" and \\", "two\nlines \xff")
	text.Begin(Histogram, "h_seconds", "Times.")
	text.AddHistogram(5, 1.5, map[float64]uint64{0.25: 3, 0.1: 1})
	want := `# HELP a A \\ and\nmore.
# TYPE a gauge
a{x="with \"quotes\" and \\",y="two\nlines ` + "\uFFFD" + `"} 1e+09
# HELP h_seconds Times.
# TYPE h_seconds histogram
h_seconds_bucket{le="0.1"} 1
h_seconds_bucket{le="0.25"} 3
h_seconds_bucket{le="+Inf"} 5
h_seconds_sum 1.5
h_seconds_count 5
`
	if diff := cmp.Diff(want, string(text.b)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
