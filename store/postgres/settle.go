package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sort"

	"github.com/jackc/pgx/v5"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// Settle implements relay.Store. A batch that was sent is one statement, whatever its size.
func (s *Store) Settle(ctx context.Context, set relay.Settlement) error {
	if err := s.settle(ctx, set); err != nil {
		return fmt.Errorf("postgres store %s: settle: %w", s.opts.Name, err)
	}
	return nil
}

func (s *Store) settle(ctx context.Context, set relay.Settlement) error {
	if s.opts.ReadOnly {
		return ErrReadOnly
	}
	st := settling{store: s, now: convergo.Micros(set.Now), set: set}
	if err := st.plan(); err != nil {
		return err
	}
	if len(set.Sent)+len(set.Aside)+len(set.Failed)+len(set.Dead) == 0 && len(set.Leases) == 0 {
		return nil
	}
	if len(st.queued)+len(set.Aside)+len(set.Failed)+len(set.Dead) == 0 && s.enclosing(ctx) == nil {
		return st.sentOnly(ctx)
	}
	return s.update(ctx, func(ctx context.Context, tx *Tx) error {
		st.ctx, st.tx, st.touched = ctx, tx, nil
		return st.run()
	})
}

// places are rows of outbox_pending, in the order of their primary key: two lists, for two arrays.
type places struct {
	lanes []int16
	seqs  []int64
}

func (p *places) add(e *relay.Pending) {
	p.lanes, p.seqs = append(p.lanes, int16(e.Lane)), append(p.seqs, e.Seq)
}

func (p *places) Len() int { return len(p.seqs) }
func (p *places) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(p.lanes[i], p.lanes[j]), cmp.Compare(p.seqs[i], p.seqs[j])) < 0
}
func (p *places) Swap(i, j int) {
	p.lanes[i], p.lanes[j] = p.lanes[j], p.lanes[i]
	p.seqs[i], p.seqs[j] = p.seqs[j], p.seqs[i]
}

// settling applies a settlement. Rows move first and the blocked aggregates are looked at last, so that the outcome does
// not depend on the order of the lists: an event set aside together with the success of its aggregate's head is the new
// head. Every move starts from the row that is there, so a settlement repeated after a lost answer changes nothing. The lanes'
// rows are locked throughout, so all that follows is ours alone.
type settling struct {
	store *Store
	ctx   context.Context
	tx    *Tx
	now   int64
	set   relay.Settlement

	lanes   []int16 // of the leases, with their tokens
	tokens  []int64
	sent    places
	queued  []int64
	aside   places
	waits   []int64                  // put aside now or before
	touched map[convergo.Digest]bool // aggregates whose queue may have changed
}

// plan builds the lists outside the transaction, and checks that every event's lane is leased.
func (st *settling) plan() error {
	var leased [convergo.Lanes]bool
	for _, l := range st.set.Leases {
		if l.Lane >= convergo.Lanes {
			return fmt.Errorf("lane %d is none: there are %d: %w", l.Lane, convergo.Lanes, relay.ErrLeaseLost)
		}
		leased[l.Lane] = true
	}
	st.lanes, st.tokens = leaseLists(st.set.Leases)
	visit := func(p *relay.Pending) error {
		if p.Lane >= convergo.Lanes || !leased[p.Lane] {
			return fmt.Errorf("event %s: its lane %d is not among the settlement's leases", p.Event.Key, p.Lane)
		}
		return nil
	}
	for i := range st.set.Sent {
		p := &st.set.Sent[i]
		if err := visit(p); err != nil {
			return err
		}
		if p.Queued {
			st.queued = append(st.queued, p.Seq)
		} else {
			st.sent.add(p)
		}
	}
	for i := range st.set.Aside {
		p := &st.set.Aside[i]
		if err := visit(p); err != nil {
			return err
		}
		if !p.Queued { // a queued one is where it belongs
			st.aside.add(p)
		}
		st.waits = append(st.waits, p.Seq)
	}
	for _, list := range [][]relay.Failure{st.set.Failed, st.set.Dead} {
		for i := range list {
			if err := visit(&list[i].Pending); err != nil {
				return err
			}
		}
	}
	sort.Sort(&st.sent)
	sort.Sort(&st.aside)
	slices.Sort(st.queued)
	slices.Sort(st.waits)
	return nil
}

// sentOnly is a statement that is its own transaction: the server is never left with an open one when we are stopped, and the
// answer is one round trip away.
func (st *settling) sentOnly(ctx context.Context) error {
	s := st.store
	seq, life := s.floors.stand()
	var standing, xid int64
	// A deadlock is unlikely, as lanes are locked in order; should there be one, the statement is run again.
	err := s.retry(ctx, func() (bool, error) {
		err := s.reader(ctx, func(c session) error {
			_, err := c.one(ctx, "SettleSent", []any{st.lanes, st.tokens, st.sent.lanes, st.sent.seqs}, &standing, &xid)
			return err
		})
		return again(err), err
	})
	if err != nil {
		return err
	}
	if err = st.lost(int(standing)); err != nil {
		return err
	}
	s.commits.Add(1)
	s.floors.mark(seq, life, xid)
	return nil
}

func (st *settling) lost(standing int) error {
	if standing == len(st.set.Leases) {
		return nil
	}
	return fmt.Errorf("%d of %d lanes are not held any more: %w", len(st.set.Leases)-standing, len(st.set.Leases), relay.ErrLeaseLost)
}

// touch notes the aggregates of waiting rows. Digests are read from the rows, never computed: see WaitingAggregates.
func (st *settling) touch(seqs []int64) error {
	return st.tx.each(st.ctx, "WaitingAggregates", []any{seqs}, func(rows pgx.Rows) error {
		var digest []byte
		if err := rows.Scan(&digest); err != nil {
			return err
		}
		st.note(digest)
		return nil
	})
}

func (st *settling) note(digest []byte) {
	if st.touched == nil {
		st.touched = map[convergo.Digest]bool{}
	}
	st.touched[convergo.Digest(digest)] = true
}

// row is the aggregate's digest and lane in the event's row; found is false when the event is not where it was claimed.
func (st *settling) row(p *relay.Pending) (digest []byte, lane int64, found bool, err error) {
	if p.Queued {
		found, err = st.store.one(st.ctx, st.tx, "WaitingAggregate", []any{p.Seq}, &digest, &lane)
	} else {
		found, err = st.store.one(st.ctx, st.tx, "PendingAggregate", []any{int16(p.Lane), p.Seq}, &digest, &lane)
	}
	return digest, lane, found, err
}

func (st *settling) exec(name string, args ...any) error {
	_, err := st.store.exec(st.ctx, st.tx, name, args...)
	return err
}

func (st *settling) run() error {
	if err := st.stand(); err != nil {
		return err
	}
	if len(st.queued) > 0 {
		if err := st.touch(st.queued); err != nil {
			return err
		}
	}
	for _, step := range []struct {
		name string
		size int
		args []any
	}{
		{"DeletePending", len(st.sent.seqs), []any{st.sent.lanes, st.sent.seqs}},
		{"DeleteWaiting", len(st.queued), []any{st.queued}},
		{"PendingToWaiting", len(st.aside.seqs), []any{st.aside.lanes, st.aside.seqs, int64(0)}},
		{"DeletePending", len(st.aside.seqs), []any{st.aside.lanes, st.aside.seqs}},
	} {
		if step.size == 0 {
			continue
		}
		if err := st.exec(step.name, step.args...); err != nil {
			return err
		}
	}
	if len(st.waits) > 0 {
		if err := st.touch(st.waits); err != nil {
			return err
		}
	}
	for i := range st.set.Dead {
		if err := st.bury(&st.set.Dead[i]); err != nil {
			return err
		}
	}
	if err := st.goOn(); err != nil {
		return err
	}
	return st.failed() // last: it decides when its aggregate's queue goes on
}

// stand locks the lanes and checks the leases, by the database's clock.
func (st *settling) stand() error {
	if len(st.set.Leases) == 0 {
		return nil
	}
	var standing int
	if _, err := st.store.one(st.ctx, st.tx, "LeasesStand", []any{st.lanes, st.tokens}, &standing); err != nil {
		return err
	}
	return st.lost(standing)
}

func (st *settling) bury(f *relay.Failure) error {
	digest, lane, found, err := st.row(&f.Pending)
	if err != nil || !found {
		return err
	}
	hold := int64(0)
	if st.set.HoldAggregate {
		hold = 1
	}
	attempts, reason := int64(f.Attempts+1), clip(f.Error)
	if f.Queued {
		err = st.exec("BuryWaiting", f.Seq, hold, attempts, st.now, clip(f.Place), reason)
	} else {
		err = st.exec("BuryPending", int16(f.Lane), f.Seq, hold, attempts, st.now, clip(f.Place), reason)
	}
	if err == nil {
		err = st.remove(&f.Pending)
	}
	if err != nil {
		return err
	}
	st.note(digest)
	if !st.set.HoldAggregate {
		return nil
	}
	return st.exec("HoldAggregate", digest, lane, f.Event.Aggregate.Type, f.Event.Aggregate.ID, attempts, st.now, reason, st.now)
}

// remove takes one event from where it was claimed.
func (st *settling) remove(p *relay.Pending) error {
	if p.Queued {
		return st.exec("DeleteWaiting", []int64{p.Seq})
	}
	return st.exec("DeletePending", []int16{int16(p.Lane)}, []int64{p.Seq})
}

// goOn settles what becomes of the aggregates whose queues changed.
func (st *settling) goOn() error {
	if len(st.touched) == 0 {
		return nil
	}
	digests := make([][]byte, 0, len(st.touched))
	for d := range st.touched {
		digests = append(digests, d[:])
	}
	slices.SortFunc(digests, slices.Compare)
	return st.store.queuesGoOn(st.ctx, st.tx, digests, st.now)
}

// queuesGoOn: an aggregate with events waiting is blocked; with none it is free, unless it is held; a head that has not
// failed is due at once.
func (s *Store) queuesGoOn(ctx context.Context, tx *Tx, digests [][]byte, now int64) error {
	if _, err := s.exec(ctx, tx, "BlockWaiting", digests, now); err != nil {
		return err
	}
	if _, err := s.exec(ctx, tx, "UnblockEmpty", digests); err != nil {
		return err
	}
	_, err := s.exec(ctx, tx, "QueueGoesOn", digests, now)
	return err
}

func (st *settling) failed() error {
	// In order: of one aggregate's failures the first is the head; its time is the one that counts.
	list := slices.Clone(st.set.Failed)
	slices.SortStableFunc(list, func(a, b relay.Failure) int { return cmp.Compare(b.Seq, a.Seq) })
	for i := range list {
		if err := st.fail(&list[i]); err != nil {
			return err
		}
	}
	return nil
}

func (st *settling) fail(f *relay.Failure) error {
	digest, lane, found, err := st.row(&f.Pending)
	if err != nil || !found {
		return err
	}
	attempts := int64(f.Attempts + 1)
	if f.Queued {
		err = st.exec("WaitingFailed", attempts, f.Seq)
	} else if err = st.exec("PendingToWaiting", []int16{int16(f.Lane)}, []int64{f.Seq}, attempts); err == nil {
		err = st.remove(&f.Pending)
	}
	if err != nil {
		return err
	}
	return st.exec("BlockAggregate", digest, lane, f.Event.Aggregate.Type, f.Event.Aggregate.ID,
		attempts, convergo.Micros(f.Next), clip(f.Error), st.now)
}
