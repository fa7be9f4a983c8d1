package share

// Waiting returns how many wait for a place.
func (p *Places) Waiting() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for turn := p.turns.Front(); turn != nil; turn = turn.Next() {
		n += turn.Value.(*queue).waiting.Len()
	}
	return n
}
