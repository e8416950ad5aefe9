package rocketmq

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/convergo/convergo"
)

// ErrRolledBack is wrapped when the broker asked about a transactional message before its local transaction had committed: it
// was told to forget the message, so the local transaction is refused. Nothing of it was written; send it again.
var ErrRolledBack = errors.New("decided to roll back: the broker asked before the local transaction committed")

// ErrUnknown is wrapped when neither the local transaction's commit nor its decision could be read: the broker will ask, and
// be answered by what the database has then.
var ErrUnknown = errors.New("the local transaction's outcome is not known yet")

// Outbox is where a transactional message's event is kept besides: an outbox.Outbox of the same database.
type Outbox interface {
	Add(ctx context.Context, tx convergo.Tx, events ...convergo.Event) error
}

// TransactionalConfig configures a Transactional. Only Group has no default.
type TransactionalConfig struct {
	// Group names all instances that share one database: any of them may be asked about the messages of another. Letters,
	// digits, '_' and '-'.
	Group string
	// RefillAfter is when the outbox sends an event whose message the broker never confirmed; default 15 min, which is more
	// than a broker goes on asking (15 times, 30 s apart, by its own defaults). A message that is confirmed is not sent again.
	RefillAfter time.Duration
	// AnswerTimeout bounds one answer to the broker's question, the database's part included; default 10 s.
	AnswerTimeout time.Duration
	Now           func() time.Time // default time.Now
	// Probe is called at "transaction.half", "transaction.committed", "transaction.ended" and "transaction.asked".
	Probe convergo.Probe
}

// Transactional sends RocketMQ's transactional messages. A half message, which no consumer sees, is stored at the broker
// first; then the local transaction commits, with the decision about the message as a row in it; then the broker is told to
// deliver it. When it is not told, because the process died in between, it asks (a check-back), and is answered by the row.
// When there is no row the answer inserts one that says "roll back": from then on the local transaction cannot commit any
// more, for its own row would be the second. So an answer is never wrong later, however long a transaction took.
//
// The event is in the outbox too, written by the local transaction, to be sent after RefillAfter: should the broker lose the
// half message or give up asking, the outbox delivers. Once the broker has confirmed the message the copy is taken out.
//
// Such a message is not kept in order with others of its aggregate: where that matters, use the outbox and a relay alone.
// It is delivered once or more: check-backs deliver copies, and the inbox drops them by the event's key.
type Transactional struct {
	broker    *Broker
	decisions *decisions
	outbox    Outbox
	cfg       TransactionalConfig
	group     string
	slots     chan struct{} // check-backs that are answered at once
	kick      chan struct{}
}

const answersAtOnce = 16

// propertyTransaction carries the transaction's id. It has no small letter: to a consumer it is RocketMQ's own.
const propertyTransaction = "CONVERGO_TRANSACTION"

// NewTransactional makes the table of decisions in the store's database. Let Run run while Send is used, and after a restart:
// it answers the brokers.
func NewTransactional(ctx context.Context, b *Broker, store Store, outbox Outbox, cfg TransactionalConfig) (*Transactional, error) {
	if err := (convergo.Subject{Topic: cfg.Group}).Validate(); err != nil {
		return nil, fmt.Errorf("transactional messages: group %q: %w", cfg.Group, err)
	}
	if cfg.RefillAfter <= 0 {
		cfg.RefillAfter = 15 * time.Minute
	}
	if cfg.AnswerTimeout <= 0 {
		cfg.AnswerTimeout = 10 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	d, err := openDecisions(ctx, store, cfg.Now)
	if err != nil {
		return nil, fmt.Errorf("transactional messages: %w", err)
	}
	t := &Transactional{
		broker: b, decisions: d, outbox: outbox, cfg: cfg, group: b.cfg.Prefix + cfg.Group, slots: make(chan struct{}, answersAtOnce),
		kick: make(chan struct{}, 1),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.halves[t.group] != nil {
		return nil, fmt.Errorf("transactional messages: this broker has the group %s already", cfg.Group)
	}
	b.halves[t.group] = t
	return t, nil
}

// Purge forgets up to most decisions made before a time; it fits a retention job. Keep them for a day at least: a broker that
// asks about a message whose decision is gone is told to forget it.
func (t *Transactional) Purge(ctx context.Context, before time.Time, most int) (int, error) {
	return t.decisions.purge(ctx, before, most)
}

// Send stores the half message, runs local in a transaction of the store and tells the broker to deliver. It returns nil when
// the transaction has committed: then the event will be delivered, whatever happens. Any other error than ErrUnknown says that
// nothing was written. local may run again from its start; it writes through tx and waits for no network.
func (t *Transactional) Send(ctx context.Context, event convergo.Event, local func(ctx context.Context, tx convergo.Tx) error) error {
	id, err := transactionID()
	if err != nil {
		return err
	}
	event = t.complete(event, id)
	if err := check(event); err != nil {
		return err
	}
	half, err := t.half(ctx, event, id)
	if err != nil {
		// A half message may be there all the same. Nothing was decided about it: when the broker asks it is rolled back.
		return fmt.Errorf("transactional message %s: %w", event.Key, err)
	}
	t.cfg.Probe.At("transaction.half")
	stands, failure := t.commit(ctx, event, id, local)
	if failure != nil {
		// The commit may have succeeded and its answer been lost, so what is told to the broker is what the table says.
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.cfg.AnswerTimeout)
		defer cancel()
		if stands, err = t.decisions.settle(detached, id); err != nil {
			return fmt.Errorf("transactional message %s: %w: %w: %w", event.Key, ErrUnknown, failure, err)
		}
	}
	t.cfg.Probe.At("transaction.committed")
	t.end(ctx, half, stands)
	t.cfg.Probe.At("transaction.ended")
	if stands == commit {
		return nil
	}
	return fmt.Errorf("transactional message %s: %w", event.Key, failure)
}

func transactionID() (string, error) {
	var bits [16]byte
	if _, err := rand.Read(bits[:]); err != nil {
		return "", err
	}
	return hex.EncodeToString(bits[:]), nil
}

// complete fills what is empty, as an outbox does, so that the message and the outbox's row are the same event.
func (t *Transactional) complete(e convergo.Event, id string) convergo.Event {
	if e.MessageID == "" {
		e.MessageID = id
	}
	if e.Key == "" {
		e.Key = convergo.KeyFor(e.Type, e.Aggregate.ID, e.Version)
	}
	now := t.cfg.Now().UTC().Truncate(time.Microsecond)
	if e.CreatedAt.IsZero() {
		e.CreatedAt = now
	}
	e.DeliverAt = now.Add(t.cfg.RefillAfter)
	return e
}

// commit runs the local transaction: the decision first, so that an answer to the broker waits for the transaction's end.
func (t *Transactional) commit(
	ctx context.Context, event convergo.Event, id string, local func(ctx context.Context, tx convergo.Tx) error,
) (decision, error) {
	err := t.decisions.store.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		first, err := t.decisions.make(ctx, tx, id, commit)
		if err != nil {
			return err
		}
		if !first {
			return ErrRolledBack
		}
		if err := local(ctx, tx); err != nil {
			return err
		}
		return t.outbox.Add(ctx, tx, event)
	})
	return commit, err
}

// halfMessage is where a half message is.
type halfMessage struct {
	address  string // of its broker
	broker   string
	topic    string
	key      convergo.Key
	uniqueID string
	id       string
	inLog    int64 // its offset in the broker's log
	inQueue  int64 // and in the queue of half messages
	asked    bool  // the broker asked about it
}

func (t *Transactional) half(ctx context.Context, event convergo.Event, id string) (halfMessage, error) {
	b := t.broker
	parts, err := b.partitions(ctx, b.topicName(event.Topic))
	if err != nil {
		return halfMessage{}, err
	}
	at := parts[int(event.Aggregate.Lane())%len(parts)]
	m := encode(event)
	for _, p := range [][2]string{{propertyHalf, "true"}, {propertyGroup, t.group}, {propertyTransaction, id}} {
		m.properties += p[0] + nameEnd + p[1] + valueEnd
	}
	answer, err := b.send(ctx, at, sendRequest(at, t.group, m, flagHalf))
	if err != nil {
		return halfMessage{}, err
	}
	address, err := b.address(at.Broker)
	if err != nil {
		return halfMessage{}, err
	}
	h := halfMessage{address: address, broker: at.Broker, topic: at.Topic, key: event.Key, uniqueID: event.MessageID, id: id}
	if h.inQueue, err = number(answer, "queueOffset"); err != nil {
		return halfMessage{}, err
	}
	// The broker's own message id ends with the offset in its log, 16 hexadecimal digits.
	text := answer.Fields["msgId"]
	offset, err := strconv.ParseInt(text[max(0, len(text)-16):], 16, 64)
	if err != nil {
		return halfMessage{}, convergo.Unreachable(fmt.Errorf("the broker's message id %q has no offset: %w", text, err))
	}
	h.inLog = offset
	return h, nil
}

// end tells the broker what was decided, and waits until it has done so. When it does not hear it, or fails, it asks.
func (t *Transactional) end(ctx context.Context, h halfMessage, what decision) {
	const commitCode, rollbackCode = 8, 12
	code := commitCode
	if what == rollback {
		code = rollbackCode
	}
	log := t.broker.cfg.Log.With("event", string(h.key), "transaction", h.id, "decision", what.String())
	_, err := t.broker.sending.call(ctx, h.address, request(codeEndTransaction, fields("topic", h.topic, "producerGroup", t.group,
		"tranStateTableOffset", h.inQueue, "commitLogOffset", h.inLog, "commitOrRollback", code, "fromTransactionCheck", h.asked,
		"msgId", h.uniqueID, "transactionId", h.uniqueID, "bname", h.broker), nil))
	if err != nil {
		log.Warn("the broker did not take the decision about a transactional message; it will ask", "error", err)
		return
	}
	if what != commit {
		return
	}
	if err := t.decisions.delivered(ctx, h.key); err != nil {
		log.Warn("a delivered transactional message stays in the outbox and will be delivered once more", "error", err)
	}
}

// Run keeps this instance known to the brokers as one that can be asked, until ctx ends.
func (t *Transactional) Run(ctx context.Context) error {
	const every = 20 * time.Second
	for ctx.Err() == nil {
		wait := every
		if err := t.beat(ctx); err != nil && ctx.Err() == nil {
			t.broker.cfg.Log.Warn("brokers cannot ask about transactional messages", "group", t.cfg.Group, "error", err)
			wait = time.Second
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-t.kick:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

// again makes Run register with the brokers now.
func (t *Transactional) again() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

func (t *Transactional) beat(ctx context.Context) error {
	masters, err := t.broker.clusterMasters(ctx)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{
		"clientID": t.broker.clientID, "producerDataSet": []map[string]string{{"groupName": t.group}}, "consumerDataSet": []any{},
	})
	if err != nil {
		return err
	}
	var failures []error
	for name, address := range masters {
		if _, err := t.broker.reading.call(ctx, address, request(codeHeartbeat, nil, body)); err != nil {
			failures = append(failures, fmt.Errorf("broker %s: %w", name, err))
		}
	}
	return errors.Join(failures...)
}
