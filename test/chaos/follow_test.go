//go:build linux

package chaos

import (
	"encoding/json"
	"fmt"

	"execserver/protocol"
)

// follow checks the number of an event against those before it.
func follow(seqs map[string]uint64, method string, raw []byte) error {
	var p struct {
		ProcessID     string
		Seq, FirstSeq uint64
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return err
	}
	last, known := seqs[p.ProcessID]
	switch {
	case method == protocol.NotificationDropped:
		seqs[p.ProcessID] = p.FirstSeq - 1
	case known && p.Seq != last+1:
		return fmt.Errorf("process %s: event %d follows event %d", p.ProcessID, p.Seq, last)
	default:
		seqs[p.ProcessID] = p.Seq
	}
	return nil
}
