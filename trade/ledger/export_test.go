package ledger

import "github.com/convergo/convergo/sqltext"

// Statements are the service's SQL, for tests.
func (s *Service) Statements() sqltext.Set { return s.sql }
