//go:build !linux

package filesystem

import "context"

// WatchesMissing says whether a MissingWatch can ever watch anything here.
const WatchesMissing = false

// missingSlot never exists where neither the mount table can be watched nor
// single names in a directory: there every watch is refused.
type missingSlot struct{}

func newMissingSlot(context.Context, []string, string, func()) *missingSlot { return nil }

func (s *missingSlot) begin() {}
func (s *missingSlot) stop()  {}
