// Package kafka is a broker on Apache Kafka (2.4 or newer; tests run against 4.1).
//
// A topic has a fixed number of partitions, an event's partition being its aggregate's lane modulo that number, so that no two
// clients can disagree about it. A record's key is the aggregate, "type/id", its headers are those of convergo.Event.Wire, its
// value is the payload. A consumer is a group. Kafka's transactions are not used.
package kafka
