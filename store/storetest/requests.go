package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/idempotency"
)

func requestLaws[TX any]() []law[TX] {
	return []law[TX]{
		{"a request is recorded once per scope and key (B36)", requestOnce[TX]},
		{"a recorded answer comes out byte for byte", answerByteForByte[TX]},
		{"a record rolls back with its transaction", requestRollsBack[TX]},
		{"of many who record one key at once, one is fresh", oneRecords[TX]},
	}
}

func (r *rig[TX]) record(req idempotency.Record) (fresh bool) {
	r.Helper()
	r.update(func(ctx context.Context, tx TX) (err error) {
		fresh, err = r.Requests.RecordRequest(ctx, tx, req)
		return err
	})
	return fresh
}

func (r *rig[TX]) find(scope string, key convergo.Key) (found *idempotency.Record) {
	r.Helper()
	r.update(func(ctx context.Context, tx TX) (err error) {
		found, err = r.Requests.FindRequest(ctx, tx, scope, key)
		return err
	})
	return found
}

func (r *rig[TX]) request(scope string, key convergo.Key) idempotency.Record {
	return idempotency.Record{
		Scope: scope, Key: key, Fingerprint: convergo.Key("body").Digest(), Status: 201, At: r.base,
		Header: map[string]string{"Content-Type": "application/json", "Location": "/orders/1"}, Body: []byte("{\"id\":\"1\"}\n"),
	}
}

func requestOnce[TX any](r *rig[TX]) {
	if found := r.find("a", "k-1"); found != nil {
		r.Errorf("found %v in an empty store", found)
	}
	equal(r, "first", r.record(r.request("tenant A POST /orders", "k-1")), true)
	other := r.request("tenant A POST /orders", "k-1")
	other.Status, other.Body = 500, []byte("other")
	r.update(func(ctx context.Context, tx TX) error {
		fresh, err := r.Requests.RecordRequest(ctx, tx, other)
		equal(r, "again", fresh, false)
		return errors.Join(err, r.Add(ctx, tx, "n", 1))
	})
	equal(r, "an effect after the duplicate", r.value("n"), 1)
	equal(r, "the first one's status", r.find("tenant A POST /orders", "k-1").Status, 201)
	for _, s := range []string{"tenant B POST /orders", "tenant A POST /refunds", "TENANT A POST /orders"} {
		if found := r.find(s, "k-1"); found != nil {
			r.Errorf("scope %q finds the record of another", s)
		}
		equal(r, "scope "+s, r.record(r.request(s, "k-1")), true)
	}
	for _, k := range []convergo.Key{"K-1", "😀", "😡", "é", "e"} {
		equal(r, fmt.Sprintf("key %q", k), r.record(r.request("tenant A POST /orders", k)), true)
	}
}

func answerByteForByte[TX any](r *rig[TX]) {
	want := r.request("s", "k")
	want.Body = []byte{0, 0xff, '<', '&', '\n'}
	want.Header["X"] = "é\"\\"
	want.At = r.base.In(time.FixedZone("", 3600))
	r.record(want)
	empty := r.request("s", "empty")
	empty.Body, empty.Header, empty.Status = nil, nil, 204
	r.record(empty)
	got := r.find("s", "k")
	equal(r, "body", string(got.Body), string(want.Body))
	equal(r, "status", got.Status, want.Status)
	equal(r, "fingerprint", got.Fingerprint, want.Fingerprint)
	equal(r, "headers", fmt.Sprint(got.Header), fmt.Sprint(want.Header))
	equal(r, "scope and key", got.Scope+string(got.Key), "sk")
	equal(r, "time", got.At.Equal(want.At), true)
	got = r.find("s", "empty")
	equal(r, "empty body and headers", len(got.Body)+len(got.Header), 0)
}

func requestRollsBack[TX any](r *rig[TX]) {
	_ = r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
		_, err := r.Requests.RecordRequest(ctx, tx, r.request("s", "k"))
		found, again := r.Requests.FindRequest(ctx, tx, "s", "k")
		equal(r, "seen by its own transaction", found != nil, true)
		return errors.Join(err, again, errWanted)
	})
	equal(r, "seen after the rollback", r.find("s", "k") != nil, false)
	equal(r, "fresh after the rollback", r.record(r.request("s", "k")), true)
}

func oneRecords[TX any](r *rig[TX]) {
	var group sync.WaitGroup
	var won atomic.Int64
	for range 16 {
		group.Go(func() {
			err := r.Store.Update(r.ctx, func(ctx context.Context, tx TX) error {
				fresh, err := r.Requests.RecordRequest(ctx, tx, r.request("s", "k"))
				if fresh {
					won.Add(1)
				}
				return err
			})
			if err != nil {
				r.Error(err)
			}
		})
	}
	group.Wait()
	equal(r, "fresh ones", won.Load(), 1)
}
