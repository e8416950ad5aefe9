// Package rabbitmq carries events over RabbitMQ (AMQP 0-9-1).
//
// A topic is a durable topic exchange "{prefix}{topic}". A consumer is P queues "{prefix}{consumer}.{partition}", each with a
// single active consumer; an event goes to partition lane mod P, which is the last word of its routing key
// "{type}.{partition}". So an aggregate's events are always in one queue that one instance reads at a time, and they come in
// order however many instances there are. The body is the payload; the headers are those of convergo.Event.Wire; the message id is the
// event key. Names that the server itself acts on (CC, BCC, x-…) travel behind "Convergo-Escaped-".
//
// Beside them there are three small queues: "{prefix}partitions" holds no message, its settings say what P is;
// "{prefix}{consumer}.subjects" holds one message, the subjects that are bound, because AMQP cannot list bindings;
// "{prefix}{consumer}.members" is what living instances read, so that each knows how many they are.
//
// A confirmation means that every queue of the event's subjects has it: on disk, and with a quorum queue on a majority of its
// nodes. An event that no queue takes is returned by the server before it is confirmed; that is a failed attempt, "unroutable", unless
// Config.Unclaimed has its subject. A consumer gets what was published after its first Subscribe; what came before, `convergo
// replay` sends again.
//
// What this package asks for, and what the server must not be told otherwise by a policy: no message time-to-live, no length
// limit with overflow drop-head, no delivery limit. AMQP shows no policies; Broker.Check says what it can see.
package rabbitmq
