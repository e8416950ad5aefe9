package mysql

import "time"

// FloorClock replaces the clock by which the floor of the lanes trails.
func (s *Store) FloorClock(now func() time.Time) { s.floor.now = now }

// Fit is what becomes of a migration's text.
func Fit(text, collation string) string { return fit(text, collation) }

// Older tells whether a server's version is older than the one given.
func Older(version string, than [3]int) bool { return older(version, than) }
