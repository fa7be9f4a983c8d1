//go:build !linux

package metrics

// addProcess adds nothing, because reading these values is not implemented for this system.
func (t *Text) addProcess() {}
