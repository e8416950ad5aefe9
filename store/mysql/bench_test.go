package mysql_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/testserver"
)

// business is one kind of transaction: it changes an order, and writes its event in its own way, or none.
type business struct {
	name string
	run  func(ctx context.Context, client, n int) error
}

const (
	changeOrder = "UPDATE orders SET version = version + 1 WHERE id = ?"
	byHand      = `INSERT INTO outbox_event (created_at, deliver_at, lane, aggregate_version, max_attempts, key_digest, aggregate_digest,
 topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
)

func handArgs(e convergo.Event) []any {
	key, aggregate := sha256.Sum256([]byte(e.Key)), e.Aggregate.Digest()
	return []any{e.CreatedAt.UnixMicro(), 0, int(aggregate[0]) % convergo.Lanes, e.Version, 0, key[:], aggregate[:], e.Topic, e.Type,
		e.Aggregate.Type, e.Aggregate.ID, e.MessageID, string(e.Key), "{}", e.Payload}
}

func businesses(b *testing.B, s *mysql.Store, db *sql.DB) []business {
	var n atomic.Int64
	next := func(client int) convergo.Event {
		e := event(fmt.Sprint(client), int(n.Add(1)))
		e.Payload = make([]byte, 300)
		return e
	}
	return []business{
		{"none", func(ctx context.Context, client, _ int) error {
			return s.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
				_, err := tx.ExecContext(ctx, changeOrder, client)
				return err
			})
		}},
		{"hand", func(ctx context.Context, client, _ int) error {
			return s.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
				if _, err := tx.ExecContext(ctx, changeOrder, client); err != nil {
					return err
				}
				_, err := tx.ExecContext(ctx, byHand, handArgs(next(client))...)
				return err
			})
		}},
		{"plain", func(ctx context.Context, client, _ int) error { // nothing of ours: another pool, database/sql's own transaction
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			if _, err = tx.ExecContext(ctx, changeOrder, client); err != nil {
				return err
			}
			if _, err = tx.ExecContext(ctx, byHand, handArgs(next(client))...); err != nil {
				return err
			}
			return tx.Commit()
		}},
		{"insert", func(ctx context.Context, client, _ int) error {
			return s.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
				if _, err := tx.ExecContext(ctx, changeOrder, client); err != nil {
					return err
				}
				_, err := s.Insert(ctx, tx, []convergo.Event{next(client)})
				return err
			})
		}},
	}
}

// BenchmarkBusiness compares a transaction that writes an event through the store with one that writes the same row by hand. The
// kinds take turns, so that what else the machine does meets all of them. One iteration is a turn of each; use -benchtime 40x.
func BenchmarkBusiness(b *testing.B) {
	for _, k := range kinds {
		for _, clients := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("%s/clients=%d", k.name, clients), func(b *testing.B) {
				server := testserver.Shared(b, &servers, k.name, k.open)
				dsn := fresh(b, server)
				s, db := open(b, dsn, mysql.Options{MaxConns: clients}), raw(b, dsn+"?interpolateParams=true")
				db.SetMaxIdleConns(clients)
				_, err := db.Exec("CREATE TABLE orders (id BIGINT PRIMARY KEY, version BIGINT NOT NULL)")
				must(b, err)
				for i := range clients {
					_, err = db.Exec("INSERT INTO orders VALUES (?, 0)", i)
					must(b, err)
				}
				done, kinds := map[string]int64{}, businesses(b, s, db)
				turn(b, kinds[3], clients, 200*time.Millisecond) // the pools fill
				for range b.N {
					for _, i := range rand.Perm(len(kinds)) { // none always comes after the same other
						done[kinds[i].name] += turn(b, kinds[i], clients, 100*time.Millisecond)
					}
				}
				for _, kind := range kinds {
					b.ReportMetric(float64(done[kind.name])*10/float64(b.N), kind.name+"/s")
				}
				b.ReportMetric(float64(done["insert"])/float64(done["hand"]), "insert:hand")
				b.ReportMetric(float64(done["insert"])/float64(done["plain"]), "insert:plain")
				b.ReportMetric(float64(done["insert"])/float64(done["none"]), "insert:none")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// turn runs a kind of transaction for a while with some clients, and returns how many were committed.
func turn(b *testing.B, kind business, clients int, long time.Duration) int64 {
	b.Helper()
	var n atomic.Int64
	var group sync.WaitGroup
	end := time.Now().Add(long)
	for client := range clients {
		group.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				if err := kind.run(context.Background(), client, i); err != nil {
					b.Error(err)
					return
				}
				n.Add(1)
			}
		})
	}
	group.Wait()
	return n.Load()
}

// BenchmarkDrain claims and settles a backlog.
func BenchmarkDrain(b *testing.B) {
	for _, k := range kinds {
		b.Run(k.name, func(b *testing.B) {
			server := testserver.Shared(b, &servers, k.name, k.open)
			s := open(b, fresh(b, server), mysql.Options{})
			for n := 0; n < b.N; n += 500 {
				var list []convergo.Event
				for i := n; i < min(n+500, b.N); i++ {
					list = append(list, event(fmt.Sprint(i%1000), i/1000+1))
				}
				must(b, insert(b.Context(), s, list...))
			}
			leases, err := s.Lease(b.Context(), relay.LeaseRequest{Owner: "r", Term: time.Hour})
			must(b, err)
			b.ResetTimer()
			for left := b.N; left > 0; {
				c, err := s.Claim(b.Context(), leases, 16, time.Now())
				must(b, err)
				must(b, s.Settle(b.Context(), relay.Settlement{Leases: leases, Sent: c.Events, Now: time.Now()}))
				left -= len(c.Events)
			}
		})
	}
}
