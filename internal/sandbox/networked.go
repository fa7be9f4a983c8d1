package sandbox

import "sync"

// networked is the set of confinements with a network whose commands may run. These
// commands can reach what listens on this machine.
type networked struct {
	share *share // with other programs of this user

	mu   sync.Mutex
	each map[*Confinement]string // the process namespace; "" if unknown
}

func (n *networked) add(c *Confinement) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.each == nil {
		n.each = make(map[*Confinement]string)
	}
	n.each[c] = ""
	n.share.set(true)
}

func (n *networked) set(c *Confinement, namespace string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.each[c]; ok {
		n.each[c] = namespace
	}
}

func (n *networked) remove(c *Confinement) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.each, c)
	n.share.set(len(n.each) > 0)
}

// Networked reports whether a command with a network is confined at the moment, by this
// engine (here) and by other programs of this user (elsewhere).
func (e *Engine) Networked() (here, elsewhere bool) {
	e.networked.mu.Lock()
	defer e.networked.mu.Unlock()
	return len(e.networked.each) > 0, e.networked.share.others()
}

// Inside reports whether a process in a process namespace, as /proc spells it, is or may
// be confined with a network. own is the namespace of this program. elsewhere is the
// result of Networked when the process connected.
func (e *Engine) Inside(namespace, own string, elsewhere bool) bool {
	e.networked.mu.Lock()
	defer e.networked.mu.Unlock()
	for _, inside := range e.networked.each {
		if inside == namespace || inside == "" && namespace != own {
			return true
		}
	}
	// The namespaces of other programs are unknown.
	return namespace != own && elsewhere
}
