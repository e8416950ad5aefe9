// Package sqltext reads named SQL statements out of .sql files and fits them to a database.
package sqltext
