//go:build linux

package fleet

import (
	"testing"

	"execserver/internal/testkit"
)

// network is the routes of a cluster, with a link for each direction in which a node
// connects to another one.
type network struct {
	links map[[2]int]*testkit.Link
	// bypass is what nodes tell each other about where they listen. Nothing gets through it, or
	// they would find ways around the links.
	bypass *testkit.Link
}

func newNetwork(t *testing.T, nodes []*node) *network {
	t.Helper()
	n := &network{links: make(map[[2]int]*testkit.Link), bypass: testkit.NewLink(t, "")}
	n.bypass.Set(testkit.LinkRefused)
	for from := range nodes {
		for to := range nodes {
			if from != to {
				n.links[[2]int{from, to}] = testkit.NewLink(t, nodes[to].cluster)
			}
		}
	}
	return n
}

func (n *network) route(from, to int) string { return n.links[[2]int{from, to}].Address() }

// between changes the state of the network between two nodes.
func (n *network) between(a, b int, state testkit.LinkState) {
	n.links[[2]int{a, b}].Set(state)
	n.links[[2]int{b, a}].Set(state)
}
