// Package convergo is the vocabulary of the system: Event, Key, Lane, the verdict of an error, Backoff, Tx.
// It is pure: it opens nothing, it imports nothing of ours. Every other package may speak it.
//
// An event is written to an outbox in the caller's own transaction (package outbox), carried to a broker by a relay
// (package relay) and applied once per consumer (package inbox). Stores and brokers live below store/ and broker/.
package convergo
