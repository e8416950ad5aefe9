package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// Settle implements relay.Store. A batch that was sent is two statements, whatever its size.
func (s *Store) Settle(ctx context.Context, set relay.Settlement) error {
	if err := s.settle(ctx, set); err != nil {
		return s.fail("settle", err)
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

	sent, queued, aside []int64                  // seqs
	waits               []int64                  // put aside now or before
	touched             map[convergo.Digest]bool // aggregates whose queue may have changed
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
			st.queued = append(st.queued, p.Seq)
		} else {
			st.sent = append(st.sent, p.Seq)
		}
	}
	for i := range st.set.Aside {
		p := &st.set.Aside[i]
		if err := visit(p); err != nil {
			return err
		}
		if !p.Queued { // a queued one is where it belongs
			st.aside = append(st.aside, p.Seq)
		}
		st.waits = append(st.waits, p.Seq)
	}
	for _, failures := range [][]relay.Failure{st.set.Failed, st.set.Dead} {
		for i := range failures {
			if err := visit(&failures[i].Pending); err != nil {
				return err
			}
		}
	}
	for _, seqs := range [][]int64{st.sent, st.queued, st.aside, st.waits} {
		slices.Sort(seqs)
	}
	return nil
}

// touch notes the aggregates of waiting rows. Digests are read from the rows, never computed: see WaitingAggregates.
func (st *settling) touch(seqs []int64) error {
	if len(seqs) == 0 {
		return nil
	}
	digests, err := list(st.ctx, st.tx, scanDigest, st.store.sql.Get("WaitingAggregates"), array(seqs))
	if err != nil {
		return fmt.Errorf("WaitingAggregates: %w", err)
	}
	if st.touched == nil {
		st.touched = map[convergo.Digest]bool{}
	}
	for _, d := range digests {
		st.touched[d] = true
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
		return nil, 0, false, fmt.Errorf("%s: %w", statement, err)
	}
	return digest, lane, true, nil
}

func (st *settling) exec(name string, args ...any) error {
	_, err := st.store.exec(st.ctx, st.tx, name, args...)
	return err
}

// move runs a statement on a list of seqs, when there are any.
func (st *settling) move(name string, seqs []int64, args ...any) error {
	if len(seqs) == 0 {
		return nil
	}
	return st.exec(name, append(args, array(seqs))...)
}

func (st *settling) run() error {
	if err := st.stand(); err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return st.touch(st.queued) },
		func() error { return st.move("DeletePending", st.sent) },
		func() error { return st.move("DeleteWaiting", st.queued) },
		func() error { return st.move("PendingToWaiting", st.aside, int64(0)) },
		func() error { return st.move("DeletePending", st.aside) },
		func() error { return st.touch(st.waits) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	for i := range st.set.Dead {
		if err := st.bury(&st.set.Dead[i]); err != nil {
			return err
		}
	}
	if err := st.store.queuesGoOn(st.ctx, st.tx, st.touched, st.now); err != nil {
		return err
	}
	return st.failed() // last: it decides when its aggregate's queue goes on
}

// stand checks the leases inside the transaction and keeps them: until it ends nobody takes one of these lanes over.
func (st *settling) stand() error {
	statement := "LockLanes"
	if len(st.queued)+len(st.waits)+len(st.set.Failed)+len(st.set.Dead) == 0 {
		statement = "SharedLanes"
	}
	stand, err := st.store.standing(st.ctx, st.tx, statement, st.set.Leases, "")
	if err != nil {
		return err
	}
	if lost := len(st.set.Leases) - len(stand); lost > 0 {
		return fmt.Errorf("%d of %d lanes are not held any more: %w", lost, len(st.set.Leases), relay.ErrLeaseLost)
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
	if err = st.exec(from, hold, attempts, st.now, clip(f.Place), reason, f.Seq); err != nil {
		return err
	}
	if err = st.move(remove, []int64{f.Seq}); err != nil {
		return err
	}
	aggregate, err := digestOf(digest)
	if err != nil {
		return err
	}
	if st.touched == nil {
		st.touched = map[convergo.Digest]bool{}
	}
	st.touched[aggregate] = true
	if !st.set.HoldAggregate {
		return nil
	}
	return st.exec("HoldAggregate", digest, lane, f.Event.Aggregate.Type, f.Event.Aggregate.ID, attempts, st.now, reason, st.now)
}

// head is the first of an aggregate's waiting events.
type head struct {
	digest    convergo.Digest
	attempts  int64
	lane      int64
	aggregate convergo.Aggregate
}

// headsMost is how many heads one statement asks for.
const headsMost = 200

// queuesGoOn: an aggregate with events waiting is blocked; with none it is free, unless it is held; a head that has not
// failed is due at once. The lane's row is locked, so nobody else changes what is read here.
func (s *Store) queuesGoOn(ctx context.Context, tx *Tx, touched map[convergo.Digest]bool, now int64) error {
	digests := make([]convergo.Digest, 0, len(touched))
	for d := range touched {
		digests = append(digests, d)
	}
	slices.SortFunc(digests, func(a, b convergo.Digest) int { return slices.Compare(a[:], b[:]) })
	for chunk := range slices.Chunk(digests, headsMost) {
		if err := s.someGoOn(ctx, tx, chunk, now); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) someGoOn(ctx context.Context, tx *Tx, digests []convergo.Digest, now int64) error {
	heads, err := s.heads(ctx, tx, digests)
	if err != nil {
		return err
	}
	var empty, fresh []convergo.Digest
	for _, d := range digests {
		h, waits := heads[d]
		if !waits {
			empty = append(empty, d)
			continue
		}
		if _, err = s.exec(ctx, tx, "BlockWaiting", d[:], h.lane, h.aggregate.Type, h.aggregate.ID, now, now); err != nil {
			return err
		}
		if h.attempts == 0 {
			fresh = append(fresh, d)
		}
	}
	if len(empty) > 0 {
		if _, err = s.execWith(ctx, tx, "UnblockEmpty", []string{":digests", literals(empty)}); err != nil {
			return err
		}
	}
	if len(fresh) > 0 {
		_, err = s.execWith(ctx, tx, "QueueGoesOn", []string{":digests", literals(fresh)}, now)
	}
	return err
}

// heads reads the heads of those queues that have one.
func (s *Store) heads(ctx context.Context, tx *Tx, digests []convergo.Digest) (map[convergo.Digest]head, error) {
	parts := make([]string, len(digests))
	for i, d := range digests {
		parts[i] = s.with("QueueHead", ":digest", literal(d))
	}
	found, err := list(ctx, tx, func(rows *sql.Rows) (h head, err error) {
		var digest []byte
		if err = rows.Scan(&digest, &h.attempts, &h.lane, &h.aggregate.Type, &h.aggregate.ID); err == nil {
			h.digest, err = digestOf(digest)
		}
		return h, err
	}, strings.Join(parts, "\nUNION ALL\n"))
	if err != nil {
		return nil, fmt.Errorf("QueueHead: %w", err)
	}
	heads := make(map[convergo.Digest]head, len(found))
	for _, h := range found {
		heads[h.digest] = h
	}
	return heads, nil
}

func (st *settling) failed() error {
	// In order: of one aggregate's failures the first is the head; its time is the one that counts.
	failures := slices.Clone(st.set.Failed)
	slices.SortStableFunc(failures, func(a, b relay.Failure) int { return cmp.Compare(b.Seq, a.Seq) })
	for i := range failures {
		if err := st.fail(&failures[i]); err != nil {
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
	} else if err = st.move("PendingToWaiting", []int64{f.Seq}, attempts); err == nil {
		err = st.move("DeletePending", []int64{f.Seq})
	}
	if err != nil {
		return err
	}
	return st.exec("BlockAggregate", digest, lane, f.Event.Aggregate.Type, f.Event.Aggregate.ID,
		attempts, convergo.Micros(f.Next), clip(f.Error), st.now)
}
