//go:build !linux

package ownership

// UsageKnown says that only Linux tells what processes use.
const UsageKnown = false

// UsageOf returns nothing: only Linux tells what processes use.
func (o *Ownership) UsageOf([]*Owner) map[*Owner][]Usage { return nil }
