package sqltext

// Dialect is the form of SQL that a database wants.
type Dialect uint8

// The dialects.
const (
	SQLite Dialect = iota
	Postgres
	MySQL
)
