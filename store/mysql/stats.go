package mysql

// Stats are counts since the store was opened.
type Stats struct {
	Commits    int64 // transactions of this store that were committed, reading ones included
	Updates    int64 // the same: an Update is a transaction of its own
	Statements int64 // statements that were sent, BEGIN, COMMIT and savepoints included
	Repeats    int64 // times that Update ran its function again
	Deadlocks  int64 // errors 1213 that this store's statements got
	LockWaits  int64 // errors 1205
}

// Stats is a snapshot of the counts.
func (s *Store) Stats() Stats {
	c := &s.counts
	return Stats{
		Commits: c.commits.Load(), Updates: c.commits.Load(), Statements: c.statements.Load(), Repeats: c.repeats.Load(),
		Deadlocks: c.deadlocks.Load(), LockWaits: c.waits.Load(),
	}
}
