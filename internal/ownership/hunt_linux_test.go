package ownership

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// TestHuntGoesOnAfterAStop: a hunt whose time passed while the whole program was
// stopped goes on, and gives up only when several scans have found it alive.
func TestHuntGoesOnAfterAStop(t *testing.T) {
	var log testkit.Buffer
	h := &hunt{name: "session", deadline: time.Now().Add(-time.Minute), done: make(chan struct{})}
	o := &Ownership{log: slog.New(slog.NewTextHandler(&log, nil))}
	o.hunts = []*hunt{h}
	over := func() bool { return o.endHunts([]*hunt{h}, []int{24}, false, nil) }
	for scan := range minScans - 1 {
		if over() {
			t.Fatalf("the hunt has given up after scan %d", scan)
		}
	}
	if !over() {
		t.Error("the hunt goes on")
	}
	<-h.done
	if !strings.Contains(log.String(), "left=24") || strings.Contains(log.String(), "error") {
		t.Errorf("log: %s", log.String())
	}
}
