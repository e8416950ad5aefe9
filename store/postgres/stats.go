package postgres

// Stats are counts since the store was opened.
type Stats struct {
	Commits    int64 // writing transactions that were committed
	Updates    int64 // Updates that were committed
	Statements int64 // statements that were run, those that begin and end transactions not included
	Retries    int64 // transactions that were begun again because the database asked for it
}

// Stats is a snapshot of the counts.
func (s *Store) Stats() Stats {
	return Stats{Commits: s.commits.Load(), Updates: s.updates.Load(), Statements: s.statements.Load(), Retries: s.retries.Load()}
}
