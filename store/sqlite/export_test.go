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

// RefuseCommits makes every COMMIT fail, as a disk that breaks would. Only at a commit's probe.
func (s *Store) RefuseCommits() error {
	return s.writer.conn.Raw(func(conn any) error {
		conn.(*cachingConn).RegisterCommitHook(func() int32 { return 1 })
		return nil
	})
}
