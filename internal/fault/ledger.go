//go:build faults

package fault

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// ledger holds the descriptors that were opened through package sys and have neither been
// closed nor passed on.
var ledger = struct {
	sync.Mutex
	owned  map[int]string // where each was opened
	closed map[int]string // where each descriptor that is not owned was last closed
	wrong  []string
}{owned: make(map[int]string), closed: make(map[int]string)}

// Own notes that a descriptor was opened.
func Own(fd int) {
	ledger.Lock()
	defer ledger.Unlock()
	if before, ok := ledger.owned[fd]; ok {
		ledger.wrong = append(ledger.wrong,
			fmt.Sprintf("descriptor %d, opened at %s, was closed by somebody else: the kernel gave it again at %s", fd, before, caller()))
	}
	ledger.owned[fd] = caller()
}

// Disown notes that another owner, usually an os.File, takes over a descriptor.
func Disown(fd int) {
	ledger.Lock()
	defer ledger.Unlock()
	delete(ledger.owned, fd)
}

// Close notes that a descriptor is about to be closed.
func Close(fd int) {
	ledger.Lock()
	defer ledger.Unlock()
	if _, ok := ledger.owned[fd]; !ok {
		ledger.wrong = append(ledger.wrong,
			fmt.Sprintf("descriptor %d is closed at %s without being owned; closed last at %s", fd, caller(), ledger.closed[fd]))
	}
	delete(ledger.owned, fd)
	ledger.closed[fd] = caller()
}

// Owned returns the owned descriptors, and where each was opened.
func Owned() map[int]string {
	ledger.Lock()
	defer ledger.Unlock()
	return maps.Clone(ledger.owned)
}

// Wrong returns the descriptors that were closed twice or not by their owner, and forgets
// them.
func Wrong() []string {
	ledger.Lock()
	defer ledger.Unlock()
	wrong := slices.Clone(ledger.wrong)
	ledger.wrong = nil
	return wrong
}
