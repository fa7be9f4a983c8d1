package sandbox

import "sync"

// networked are the confinements with a network whose commands may run: these can
// reach what listens on the machine.
type networked struct {
	share *share // with other programs of this user

	mu   sync.Mutex
	each map[*Confinement]string // the process namespace; "": not known
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

// Networked reports whether anything with a network is confined at the moment, by
// this engine, and by other programs of this user.
func (e *Engine) Networked() (here, elsewhere bool) {
	e.networked.mu.Lock()
	defer e.networked.mu.Unlock()
	return len(e.networked.each) > 0, e.networked.share.others()
}

// Inside reports whether processes of a process namespace, as /proc spells it, are
// or may be confined, with a network. own is the namespace of this program, and
// elsewhere what Networked has said when they connected.
func (e *Engine) Inside(namespace, own string, elsewhere bool) bool {
	e.networked.mu.Lock()
	defer e.networked.mu.Unlock()
	for _, inside := range e.networked.each {
		if inside == namespace || inside == "" && namespace != own {
			return true
		}
	}
	// Nobody tells which namespaces are those of other programs.
	return namespace != own && elsewhere
}
