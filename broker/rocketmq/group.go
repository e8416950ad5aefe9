package rocketmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// run takes, renews and gives back queues until the membership ends, or nobody fetches any more.
func (m *member) run(ctx context.Context) {
	storing := make(chan struct{})
	storeCtx, stopStoring := context.WithCancel(context.Background())
	go func() {
		defer close(storing)
		for {
			select {
			case <-m.acked:
				m.store(storeCtx)
			case <-storeCtx.Done():
				return
			}
		}
	}()
	defer func() {
		stopStoring()
		<-storing
	}()
	for {
		for ctx.Err() == nil && !m.unused() {
			wait := m.step(ctx)
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-m.kick:
			case <-ctx.Done():
			}
			timer.Stop()
		}
		// Only when all is given back may a next run begin: it has the same client id, and this one would unlock its queues.
		m.leave()
		m.mu.Lock()
		if ctx.Err() != nil || m.idleFor() > m.broker.cfg.Idle {
			close(m.done)
			m.done = nil
			m.signal() // who fetches begins a new run
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
	}
}

func (m *member) idleFor() time.Duration { return time.Since(m.fetched) }

// unused tells whether nobody has fetched for a while, and nobody works on anything.
func (m *member) unused() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, q := range m.queues {
		if q.open() {
			return false
		}
	}
	return m.idleFor() > m.broker.cfg.Idle
}

// step does what is due and says when to look again.
func (m *member) step(ctx context.Context) time.Duration {
	term := m.broker.cfg.LockTerm
	m.mu.Lock()
	wanted := m.wanted
	m.mu.Unlock()
	complete, err := m.balance(ctx, wanted)
	m.handOver(ctx)
	m.store(ctx)
	switch {
	case ctx.Err() != nil:
		return 0
	case err != nil:
		m.broker.cfg.Log.Warn("the queues of a consumer cannot be taken or kept", "consumer", m.consumer, "error", err)
		m.mu.Lock()
		m.note(err)
		m.mu.Unlock()
		return min(term/4, 500*time.Millisecond)
	case !complete:
		return min(term/4, 250*time.Millisecond)
	}
	return term / 4
}

// balance makes this instance known to the brokers, asks which others there are, and takes its share of the queues. complete:
// it has all of its share, and none beyond it.
func (m *member) balance(ctx context.Context, wanted subscription) (complete bool, err error) {
	all := map[string][]partition{}
	brokers := map[string]bool{}
	for _, name := range wanted.topics() {
		parts, err := m.broker.partitions(ctx, name)
		if err != nil {
			return false, err
		}
		all[name] = parts
		for _, p := range parts {
			brokers[p.Broker] = true
		}
	}
	names := slices.Sorted(maps.Keys(brokers))
	if err := m.heartbeat(ctx, names, wanted); err != nil {
		return false, err
	}
	index, of, err := m.place(ctx, names)
	if err != nil {
		return false, err
	}
	mine := map[partition]bool{}
	for _, parts := range all {
		for _, p := range share(parts, index, of) {
			mine[p] = true
		}
	}
	m.mu.Lock()
	for p, q := range m.queues {
		if mine[p] {
			q.leaving = false
		} else if !q.leaving {
			q.leaving, q.deadline = true, time.Now().Add(m.broker.cfg.Handover)
			q.interrupt()
		}
		if !brokers[p.Broker] {
			names = append(names, p.Broker)
			brokers[p.Broker] = true
		}
	}
	m.mu.Unlock()
	var failures []error
	for _, name := range names {
		failures = append(failures, m.lock(ctx, name, mine))
	}
	if err := errors.Join(failures...); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = nil
	m.signal()
	complete = len(m.queues) == len(mine)
	for _, q := range m.queues {
		complete = complete && !q.leaving
		q.wakePuller()
	}
	return complete, nil
}

// share is the queues of the member at the index of so many, in the order of RocketMQ's own clients: runs of queues, the
// first members having one more when they do not come out even.
func share(parts []partition, index, of int) []partition {
	each, more := len(parts)/of, len(parts)%of
	from := index*each + min(index, more)
	to := from + each
	if index < more {
		to++
	}
	return parts[from:to]
}

// heartbeat makes the group and its subscription known to the brokers. They forget them with the connection.
func (m *member) heartbeat(ctx context.Context, brokers []string, wanted subscription) error {
	m.mu.Lock()
	losses := m.losses
	due := time.Since(m.beaten) > min(m.broker.cfg.LockTerm, 30*time.Second)
	m.mu.Unlock()
	if !due {
		return nil
	}
	type subscriptionData struct {
		ClassFilterMode bool     `json:"classFilterMode"`
		Topic           string   `json:"topic"`
		SubString       string   `json:"subString"`
		Tags            []string `json:"tagsSet"`
		Codes           []int    `json:"codeSet"`
		Version         int64    `json:"subVersion"`
		Kind            string   `json:"expressionType"`
	}
	type consumerData struct {
		Group         string             `json:"groupName"`
		Type          string             `json:"consumeType"`
		Model         string             `json:"messageModel"`
		From          string             `json:"consumeFromWhere"`
		Subscriptions []subscriptionData `json:"subscriptionDataSet"`
		UnitMode      bool               `json:"unitMode"`
	}
	c := consumerData{Group: m.group, Type: "CONSUME_PASSIVELY", Model: "CLUSTERING", From: "CONSUME_FROM_FIRST_OFFSET"}
	now := time.Now()
	for _, name := range wanted.topics() {
		c.Subscriptions = append(c.Subscriptions, subscriptionData{
			Topic: name, SubString: everything, Tags: []string{}, Codes: []int{}, Version: now.UnixMilli(), Kind: "TAG",
		})
	}
	body, err := json.Marshal(map[string]any{"clientID": m.broker.clientID, "producerDataSet": []any{}, "consumerDataSet": []any{c}})
	if err != nil {
		return err
	}
	for _, name := range brokers {
		address, err := m.broker.address(name)
		if err != nil {
			return err
		}
		if _, err := m.broker.reading.call(ctx, address, request(codeHeartbeat, nil, body)); err != nil {
			return fmt.Errorf("heartbeat to broker %s: %w", name, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if losses == m.losses {
		m.beaten = now
	}
	return nil
}

// place is this instance's place among those that the group has now.
func (m *member) place(ctx context.Context, brokers []string) (index, of int, err error) {
	address, err := m.broker.address(brokers[0])
	if err != nil {
		return 0, 0, err
	}
	answer, err := m.broker.reading.call(ctx, address, request(codeConsumers, fields("consumerGroup", m.group, "bname", brokers[0]), nil))
	if err != nil {
		return 0, 0, fmt.Errorf("members of the group %s: %w", m.group, err)
	}
	var list struct {
		IDs []string `json:"consumerIdList"`
	}
	if err := json.Unmarshal(answer.body, &list); err != nil {
		return 0, 0, fmt.Errorf("members of the group %s: %w", m.group, err)
	}
	slices.Sort(list.IDs)
	list.IDs = slices.Compact(list.IDs)
	index = slices.Index(list.IDs, m.broker.clientID)
	if index < 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.beaten = time.Time{}
		return 0, 0, fmt.Errorf("broker %s does not know this member of the group %s yet", brokers[0], m.group)
	}
	return index, len(list.IDs), nil
}

// lock renews the locks of a broker's queues that are held, and asks for those that shall be.
func (m *member) lock(ctx context.Context, broker string, mine map[partition]bool) error {
	ask := map[partition]bool{}
	for p := range mine {
		ask[p] = p.Broker == broker
	}
	m.mu.Lock()
	losses := m.losses
	for p := range m.queues {
		ask[p] = p.Broker == broker
	}
	m.mu.Unlock()
	maps.DeleteFunc(ask, func(_ partition, here bool) bool { return !here })
	if len(ask) == 0 {
		return nil
	}
	for p := range ask {
		m.asked[p] = true
	}
	asked := time.Now() // the broker's term begins no earlier
	// Not ended with the run: a request that is left alone may be carried out after the unlocking that follows it.
	answer, err := m.locks(context.WithoutCancel(ctx), codeLock, broker, slices.Collect(maps.Keys(ask)))
	if err != nil {
		return fmt.Errorf("lock queues of broker %s: %w", broker, err)
	}
	var got struct {
		Locked []partition `json:"lockOKMQSet"`
	}
	if err := json.Unmarshal(answer.body, &got); err != nil {
		return fmt.Errorf("lock queues of broker %s: %w", broker, err)
	}
	locked := map[partition]bool{}
	for _, p := range got.Locked {
		locked[p] = true
	}
	trusted := asked.Add(m.broker.cfg.LockTerm * 3 / 4)
	m.mu.Lock()
	for p, q := range m.queues {
		switch {
		case p.Broker != broker:
		case locked[p]:
			q.trusted = trusted
		default:
			m.broker.cfg.Log.Warn("the lock of a queue was lost", "consumer", m.consumer, "topic", p.Topic, "queue", p.Queue)
			m.lose(q)
		}
		delete(locked, p)
	}
	m.mu.Unlock()
	var failures []error
	for p := range locked {
		failures = append(failures, m.gain(ctx, p, trusted, losses))
	}
	return errors.Join(failures...)
}

// gain begins to read a queue whose lock was taken, unless a broker was lost since it was asked for: then the lock may be
// gone already, and is asked for again.
func (m *member) gain(ctx context.Context, p partition, trusted time.Time, losses int) error {
	offset, err := m.storedOffset(ctx, p)
	if err != nil {
		return err
	}
	q := &queue{
		partition: p, name: fmt.Sprint(p.Topic, "/", p.Broker, "/", p.Queue), member: m, room: make(chan struct{}, 1),
		trusted: trusted, next: offset, committed: offset,
		interrupt: func() {},
	}
	q.ctx, q.stop = context.WithCancel(context.Background())
	m.mu.Lock()
	defer m.mu.Unlock()
	if losses != m.losses {
		q.stop()
		return nil
	}
	m.queues[p] = q
	go q.pull()
	return nil
}

// handOver gives back the queues that another instance shall have, as soon as nobody works on their messages here.
func (m *member) handOver(ctx context.Context) {
	m.mu.Lock()
	var ready []*queue
	for _, q := range m.queues {
		if q.leaving && (!q.open() || time.Now().After(q.deadline)) {
			ready = append(ready, q)
		}
	}
	m.mu.Unlock()
	m.release(ctx, ready)
}

// release stores the positions of queues and unlocks them, in this order.
func (m *member) release(ctx context.Context, queues []*queue) {
	var released []partition
	m.committing.Lock()
	for _, q := range queues {
		m.mu.Lock()
		q.leaving = true // nothing is handed out from here on
		m.mu.Unlock()
		if err := m.storeOne(ctx, q); err != nil {
			m.broker.cfg.Log.Warn("a queue is given back without its position: some of it comes again", "consumer", m.consumer,
				"topic", q.Topic, "queue", q.Queue, "error", err)
		}
		m.mu.Lock()
		if !q.gone {
			m.lose(q)
			released = append(released, q.partition)
		}
		m.mu.Unlock()
	}
	m.committing.Unlock()
	m.unlock(ctx, released)
}

func (m *member) unlock(ctx context.Context, all []partition) {
	byBroker := map[string][]partition{}
	for _, p := range all {
		byBroker[p.Broker] = append(byBroker[p.Broker], p)
	}
	for broker, parts := range byBroker {
		if _, err := m.locks(ctx, codeUnlock, broker, parts); err != nil {
			m.broker.cfg.Log.Warn("queues could not be unlocked: they stay locked until the lock's term is over", "consumer", m.consumer,
				"broker", broker, "error", err)
		}
	}
}

func (m *member) locks(ctx context.Context, code int, broker string, parts []partition) (*command, error) {
	address, err := m.broker.address(broker)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(map[string]any{"consumerGroup": m.group, "clientId": m.broker.clientID, "mqSet": parts})
	if err != nil {
		return nil, err
	}
	return m.broker.reading.call(ctx, address, request(code, fields("bname", broker), body))
}

// leave gives everything back and takes this instance out of the group.
func (m *member) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), m.broker.cfg.Timeout)
	defer cancel()
	m.mu.Lock()
	var all []*queue
	for _, q := range m.queues {
		all = append(all, q)
	}
	m.beaten = time.Time{}
	m.mu.Unlock()
	m.release(ctx, all)
	// Also those whose lock was got and which were not read any more. Of another's lock the broker takes no notice.
	m.unlock(ctx, slices.Collect(maps.Keys(m.asked)))
	clear(m.asked)
	for _, name := range m.broker.known() {
		address, err := m.broker.address(name)
		if err != nil {
			continue
		}
		// A broker that does not hear it finds out when the connection breaks, or by the heartbeats that stay away.
		goodbye := request(codeUnregister, fields("clientID", m.broker.clientID, "consumerGroup", m.group), nil)
		if _, err := m.broker.reading.call(ctx, address, goodbye); err != nil {
			m.broker.cfg.Log.Debug("a broker was not told of a member's leaving", "consumer", m.consumer, "broker", name, "error", err)
		}
	}
}
