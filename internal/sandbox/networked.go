package sandbox

import "sync"

// networked are the confinements with a network whose commands may run: these can
// reach what listens on the machine.
type networked struct {
	mu   sync.Mutex
	each map[*Confinement]string // the process namespace; "": not known
}

func (n *networked) add(c *Confinement) { n.set(c, "") }

func (n *networked) set(c *Confinement, namespace string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.each == nil {
		n.each = make(map[*Confinement]string)
	}
	n.each[c] = namespace
}

func (n *networked) remove(c *Confinement) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.each, c)
}

// Networked reports whether anything with a network is confined at the moment.
func (e *Engine) Networked() bool {
	e.networked.mu.Lock()
	defer e.networked.mu.Unlock()
	return len(e.networked.each) > 0
}

// Inside reports whether processes of a process namespace, as /proc spells it, are
// or may be confined, with a network. own is the namespace of this program.
func (e *Engine) Inside(namespace, own string) bool {
	e.networked.mu.Lock()
	defer e.networked.mu.Unlock()
	for _, inside := range e.networked.each {
		if inside == namespace || inside == "" && namespace != own {
			return true
		}
	}
	return false
}
