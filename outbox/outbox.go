package outbox

// Outbox adds events to transactions.
type Outbox[TX any] struct{ store Store[TX] }
