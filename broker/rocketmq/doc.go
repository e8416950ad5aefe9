// Package rocketmq carries events through RocketMQ 4.9.4 and later: plain messages for relays and inboxes (Broker), and
// transactional messages (Transactional).
//
// # What is where
//
// Topic "order" is the topic "convergo-order" of RocketMQ (Config.Prefix), consumer "points" the group "convergo-points". An
// event's headers are the message's properties, its type the tag, its payload the body. A topic has a fixed number of queues
// (Config.Queues, 8), and an aggregate's events are all in the queue lane mod Queues. A consumer in any language knows a
// repeated event by the property Convergo-Key: RocketMQ's message ids are new with every copy, and clients have been seen to
// change its keys.
//
// # What holds
//
// A confirmed event is stored: on the disk with flushDiskType=SYNC_FLUSH, on a slave too with brokerRole=SYNC_MASTER; Check
// names every broker that is laxer. Nothing is sent again or elsewhere by the client, so the order within an aggregate is that
// of Publish. A queue has one reader among all instances of a consumer: the holder of the broker's lock. Messages that fail
// are never skipped and never moved to RocketMQ's own retry topics: the inbox keeps them.
//
// # Limits
//
//   - How far a consumer came is on the broker's disk every 5 s (flushConsumerOffsetInterval) and at a clean stop. After a
//     SIGKILL of the broker that much comes again.
//   - The queues of an instance that died without a word go to others when the locks run out, after 60 s by the brokers' default
//     (rocketmq.broker.rebalance.lockMaxLiveTime, a property of their Java machine, and Config.LockTerm). One that stops or
//     closes its source gives them back at once. While the process lives, what is neither acknowledged nor returned does not
//     come again.
//   - An instance that was stopped (SIGSTOP) for longer than the lock's term may still be at work on what it had fetched when
//     another one goes on. It fetches nothing new then; the inbox's dedup row keeps each effect single.
//   - A message that was returned with a delay holds up its whole queue for that long.
//   - Reading and writing is done at masters. While a queue's master is away its events wait.
//   - A consumer gets all types of its topics: an instance that chose would pass over what one of another version wants. All
//     instances should have the same topics. While they differ, during a roll-out, the events of a topic that only the new ones
//     read are read for their share of the queues, the rest when the last old one has gone.
//   - In a cluster of several brokers create topics beforehand (Config.NoCreate): a topic whose brokers are all down looks
//     like one that does not exist.
//   - A message of a foreign producer is read when it is plain or compressed by zlib.
//
// # Why it has a client of its own
//
// Apache's client for Go (v2, in the state of December 2025) cannot keep these promises: its push consumer decides itself when a
// message is done with and gives a failing one up; its pull consumer takes no locks and ignores the caller's context; a
// consumer's position is sent without waiting for an answer, and so is the end of a transaction; a broken connection is
// noticed by a time-out only; with TLS it accepts any certificate; settings of brokers cannot be read. The protocol is small: a
// frame with a JSON header, asked and answered on one connection. The tests use Apache's client as a judge of this one.
package rocketmq
