// Package nats is a broker on NATS JetStream 2.12 or newer: a server or a cluster that other programs use too.
//
// All events are in one stream on disk. An event of topic T and type Y is stored under the subject ev.T.Y.N, where N is its
// partition: the lane of its aggregate modulo the number of partitions, which is fixed when the stream is made. Its headers
// are those of convergo.Event.Wire, its message id is made from the event key.
//
// A consumer is a group of instances, one in each process that subscribes with its name. Each partition is read by one of
// them at a time, from where the group has come to; that and who reads what is kept in a key-value bucket beside the stream.
// The instances need no clocks that agree: a lease ends when its holder was not heard of for Config.Lease, by the clock of
// the one who listens. A position is written only against the revision that the reader knows, so that one who was stopped
// for longer than its lease cannot set back what its successor has done.
//
// JetStream's own consumers keep acknowledgements of single messages, and deliver what was not acknowledged behind what is
// newer. Here the position of a partition is all that is kept, and an aggregate's events stay in order.
//
// A client that may not do everything needs to publish to ev.>, $JS.API.>, $KV.CONVERGO-consumers.> and convergo.>, and to
// subscribe to _INBOX.> and convergo.>, the names being those of Config.
package nats
