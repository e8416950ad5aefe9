package sqlite

// Stats are counts since the store was opened.
type Stats struct {
	Commits    int64 // transactions that reached the disk: one for all Updates that shared it
	Updates    int64 // Updates that were committed
	Statements int64 // statements that were run, BEGIN, COMMIT and savepoints included
}

// Stats is a snapshot of the counts. Updates / Commits is how many callers share a commit.
func (s *Store) Stats() Stats {
	stats := Stats{Statements: s.statements.Load()}
	if s.writer != nil {
		stats.Commits, stats.Updates = s.writer.commits.Load(), s.writer.updates.Load()
	}
	return stats
}
