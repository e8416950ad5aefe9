// Package webhook carries events straight to the URLs of subscribers: one signed POST per event and endpoint, by the Standard
// Webhooks specification.
//
// The body is the payload, byte for byte. webhook-id is the event key, the same for every attempt; a key that the header cannot hold
// is replaced by "sha256-" and the hex of its digest. webhook-timestamp is new at every attempt, webhook-signature has one
// signature for each active secret. Convergo-Event holds the event's fields and headers (convergo.Event.Wire) as a query string,
// and Convergo-Signature signs "{id}.{timestamp}.{Convergo-Event}" in the same way, because the standard's signature covers the
// body only.
//
// Convergo-Attempt says from the second delivery on how often the endpoint was told of the event and did not settle it: no answer, or a
// gateway's 502, 503 or 504. Its number is signed in the same way. A process that dies of a message leaves no other trace: the inbox behind a
// Receiver finds it by this. Who has no use for it need not read it.
//
// What is promised: each endpoint gets each of its events at least once, and an aggregate's events in order. An event is sent
// when all of its endpoints have answered 2xx. When only some have, the others are tried again alone for as long as this process
// remembers it (Config.Remember); after a restart, or when it was forgotten, all get it again, and all get a replay. Subscribers
// deduplicate by webhook-id.
//
// A Receiver is the other side for services in Go: an http.Handler that verifies, and a source of deliveries for an inbox.
package webhook
