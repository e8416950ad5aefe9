package mysql

import "time"

// FloorClock replaces the clock by which the floor of the lanes trails.
func (s *Store) FloorClock(now func() time.Time) { s.floor.now = now }

// LookTooEarly has a purge's first look find every event finished, as one does whose snapshot is older than what has become of
// the events before they were locked.
func (s *Store) LookTooEarly() {
	s.sql["SentAmong"] = "SELECT id FROM outbox_event FORCE INDEX (PRIMARY) WHERE id IN (:ids) ORDER BY id LIMIT ?"
}

// Fit is what becomes of a migration's text.
func Fit(text, collation string) string { return fit(text, collation) }

// Older tells whether a server's version is older than the one given.
func Older(version string, than [3]int) bool { return older(version, than) }

// Narrow makes the next claim look at so many rows.
func (s *Store) Narrow(rows int64) { s.narrow.rows.Store(rows) }

// NarrowRows is how many rows the next claim looks at; 0 for all.
func (s *Store) NarrowRows() int { return int(s.narrow.rows.Load()) }
