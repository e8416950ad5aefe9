// Package redis is a broker on Redis Streams (Redis 7 or newer, one primary with or without replicas, not Redis Cluster).
//
// A topic is a fixed number of streams, its partitions: {prefix}:{topic}:{partition}, an event's partition being its aggregate's
// lane modulo that number. A consumer is a group on each of them. A partition has one reader per consumer at a time: the holder of
// a lease that lives in Redis; the instances of a consumer share its partitions evenly. An entry holds the headers of
// convergo.Event.Wire as fields, under their own names, and the payload as the field ":payload".
package redis
