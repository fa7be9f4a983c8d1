package ownership

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"execserver/internal/testkit"
)

// TestKillingGoesOnAfterAStop: a kill loop whose deadline passed while the whole program
// was stopped continues, and gives up only when several scans have found processes.
func TestKillingGoesOnAfterAStop(t *testing.T) {
	var log testkit.Buffer
	k := &killRequest{target: "session", deadline: time.Now().Add(-time.Minute), done: make(chan struct{})}
	o := &Ownership{log: slog.New(slog.NewTextHandler(&log, nil))}
	o.kills = []*killRequest{k}
	over := func() bool { return o.finishKills([]*killRequest{k}, []int{24}, false, nil) }
	for scan := range minScans - 1 {
		if over() {
			t.Fatalf("the loop has given up after scan %d", scan)
		}
	}
	if !over() {
		t.Error("the loop goes on")
	}
	<-k.done
	if !strings.Contains(log.String(), "left=24") || strings.Contains(log.String(), "error") {
		t.Errorf("log: %s", log.String())
	}
}
