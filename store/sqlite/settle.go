package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// Settle implements relay.Store. A batch that was sent is two statements, whatever its size.
func (s *Store) Settle(ctx context.Context, set relay.Settlement) error {
	if err := s.settle(ctx, set); err != nil {
		return fmt.Errorf("sqlite store %s: settle: %w", s.opts.Name, err)
	}
	return nil
}

func (s *Store) settle(ctx context.Context, set relay.Settlement) error {
	st := settling{store: s, now: convergo.Micros(set.Now), set: set}
	if err := st.plan(); err != nil {
		return err
	}
	if len(set.Sent)+len(set.Aside)+len(set.Failed)+len(set.Dead) == 0 && len(set.Leases) == 0 {
		return nil
	}
	return s.update(ctx, func(ctx context.Context, tx *Tx) error {
		st.ctx, st.tx, st.touched = ctx, tx, nil
		return st.run()
	})
}

// settling applies a settlement. Rows move first and the blocked aggregates are looked at last, so that the outcome does
// not depend on the order of the lists: an event set aside together with the success of its aggregate's head is the new
// head. Every move starts from the row that is there, so a settlement repeated after a lost answer changes nothing.
type settling struct {
	store *Store
	ctx   context.Context
	tx    *Tx
	now   int64
	set   relay.Settlement

	sent    []byte // JSON arrays of seq
	queued  []byte
	aside   []byte
	waits   []byte // put aside now or before
	touched []byte // JSON array of digests: aggregates whose queue may have changed
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
			st.queued = appendID(st.queued, p.Seq)
		} else {
			st.sent = appendID(st.sent, p.Seq)
		}
	}
	for i := range st.set.Aside {
		p := &st.set.Aside[i]
		if err := visit(p); err != nil {
			return err
		}
		if !p.Queued { // a queued one is where it belongs
			st.aside = appendID(st.aside, p.Seq)
		}
		st.waits = appendID(st.waits, p.Seq)
	}
	for _, list := range [][]relay.Failure{st.set.Failed, st.set.Dead} {
		for i := range list {
			if err := visit(&list[i].Pending); err != nil {
				return err
			}
		}
	}
	return nil
}

// touch notes the aggregates of waiting rows. Digests are read from the rows, never computed: see WaitingAggregates.
func (st *settling) touch(seqs []byte) error {
	digests, err := list(st.ctx, st.tx, func(rows *sql.Rows) (d []byte, err error) { return d, rows.Scan(&d) },
		st.store.sql.Get("WaitingAggregates"), string(seqs))
	if err != nil {
		return fmt.Errorf("WaitingAggregates: %w", st.store.explain(err))
	}
	seen := make(map[convergo.Digest]bool, len(digests))
	for _, bytes := range digests {
		if d := convergo.Digest(bytes); !seen[d] {
			seen[d] = true
			st.touched = appendDigest(st.touched, d)
		}
	}
	return nil
}

// row is the aggregate's digest and lane in the event's row; found is false when the event is not where it was claimed.
func (st *settling) row(p *relay.Pending) (digest []byte, lane int64, found bool, err error) {
	statement := "PendingAggregate"
	if p.Queued {
		statement = "WaitingAggregate"
	}
	err = st.tx.QueryRowContext(st.ctx, st.store.sql.Get(statement), p.Seq).Scan(&digest, &lane)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, 0, false, nil
	}
	if err != nil {
		return nil, 0, false, fmt.Errorf("%s: %w", statement, st.store.explain(err))
	}
	return digest, lane, true, nil
}

func (st *settling) exec(name string, args ...any) (int64, error) {
	return st.store.exec(st.ctx, st.tx, name, args...)
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
		list []byte
		args []any
	}{
		{"DeletePending", st.sent, nil},
		{"DeleteWaiting", st.queued, nil},
		{"PendingToWaiting", st.aside, []any{int64(0)}},
		{"DeletePending", st.aside, nil},
	} {
		if len(step.list) == 0 {
			continue
		}
		if _, err := st.exec(step.name, append([]any{string(step.list)}, step.args...)...); err != nil {
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

// stand checks the leases inside the transaction, by the database's clock.
func (st *settling) stand() error {
	if len(st.set.Leases) == 0 {
		return nil
	}
	var lanes int64 // one bit a lane
	var tokens [convergo.Lanes]int64
	for _, l := range st.set.Leases {
		lanes |= 1 << l.Lane
		tokens[l.Lane] = l.Token
	}
	standing := 0
	err := st.tx.each(st.ctx, st.store.sql.Get("LeasesStand"), func(v []driver.Value) error {
		if integer(v[1]) == tokens[integer(v[0])] {
			standing++
		}
		return nil
	}, lanes)
	if err != nil {
		return fmt.Errorf("LeasesStand: %w", st.store.explain(err))
	}
	if standing != len(st.set.Leases) {
		return fmt.Errorf("%d of %d lanes are not held any more: %w", len(st.set.Leases)-standing, len(st.set.Leases), relay.ErrLeaseLost)
	}
	return nil
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
	from, remove := "BuryPending", "DeletePending"
	if f.Queued {
		from, remove = "BuryWaiting", "DeleteWaiting"
	}
	if _, err = st.exec(from, f.Seq, hold, attempts, st.now, clip(f.Place), reason); err != nil {
		return err
	}
	if _, err = st.exec(remove, string(appendID(nil, f.Seq))); err != nil {
		return err
	}
	st.touched = appendDigest(st.touched, convergo.Digest(digest))
	if !st.set.HoldAggregate {
		return nil
	}
	_, err = st.exec("HoldAggregate", digest, lane, f.Event.Aggregate.Type, f.Event.Aggregate.ID, attempts, st.now, reason, st.now)
	return err
}

// goOn settles what becomes of the aggregates whose queues changed.
func (st *settling) goOn() error {
	if len(st.touched) == 0 {
		return nil
	}
	return st.store.queuesGoOn(st.ctx, st.tx, string(st.touched), st.now)
}

// queuesGoOn: an aggregate with events waiting is blocked; with none it is free, unless it is held; a head that has not
// failed is due at once.
func (s *Store) queuesGoOn(ctx context.Context, tx convergo.Tx, digests string, now int64) error {
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
	slices.SortStableFunc(list, func(a, b relay.Failure) int { return int(min(max(b.Seq-a.Seq, -1), 1)) })
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
		_, err = st.exec("WaitingFailed", attempts, f.Seq)
	} else if _, err = st.exec("PendingToWaiting", string(appendID(nil, f.Seq)), attempts); err == nil {
		_, err = st.exec("DeletePending", string(appendID(nil, f.Seq)))
	}
	if err != nil {
		return err
	}
	_, err = st.exec("BlockAggregate", digest, lane, f.Event.Aggregate.Type, f.Event.Aggregate.ID,
		attempts, convergo.Micros(f.Next), clip(f.Error), st.now)
	return err
}
