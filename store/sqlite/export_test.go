package sqlite

// Queued is how many Updates wait for their turn.
func (s *Store) Queued() int {
	s.writer.mu.Lock()
	defer s.writer.mu.Unlock()
	n := 0
	for _, t := range s.writer.queue {
		if !t.abandoned {
			n++
		}
	}
	return n
}
