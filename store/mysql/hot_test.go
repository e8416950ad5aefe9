package mysql_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/testserver"
)

// BenchmarkHotBatches counts how often two instances of a consumer, with aggregates of their own, deadlock over rows that both
// need (the stock of an article). Each applies its messages in batches: a mark and an update of one of 20 hot rows, the hottest of
// which is in every fourth message. An iteration is a batch of each instance; the counts are for each thousand messages.
func BenchmarkHotBatches(b *testing.B) {
	for _, k := range kinds {
		for _, size := range []int{1, 10, 100} {
			for _, sorted := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/batch=%d/sorted=%v", k.name, size, sorted), func(b *testing.B) {
					server := testserver.Shared(b, &servers, k.name, k.open)
					dsn := fresh(b, server)
					s, db := open(b, dsn, mysql.Options{}), raw(b, dsn)
					_, err := db.Exec("CREATE TABLE stock (sku BIGINT PRIMARY KEY, n BIGINT NOT NULL)")
					must(b, err)
					for sku := range 20 {
						_, err := db.Exec("INSERT INTO stock VALUES (?, 0)", sku)
						must(b, err)
					}
					var instances sync.WaitGroup
					var failed [2]int
					began := time.Now()
					for i := range 2 {
						instances.Go(func() {
							for n := range b.N {
								failed[i] += applyBatch(b, s, fmt.Sprint(i, "-", n), size, sorted)
							}
						})
					}
					instances.Wait()
					stats, messages := s.Stats(), float64(2*size*b.N)
					b.ReportMetric(messages/time.Since(began).Seconds(), "messages/s")
					b.ReportMetric(float64(stats.Deadlocks)*1000/messages, "deadlocks/1000")
					b.ReportMetric(float64(stats.Repeats)*1000/messages, "repeats/1000")
					b.ReportMetric(float64(failed[0]+failed[1])*1000/messages, "given-up/1000")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}

// applyBatch is one transaction, as a consumer's; failed counts those that were given up.
func applyBatch(b *testing.B, s *mysql.Store, name string, size int, sorted bool) (failed int) {
	b.Helper()
	type message struct {
		event convergo.Event
		sku   int
	}
	batch := make([]message, size)
	for i := range batch {
		batch[i] = message{event(fmt.Sprint(name, "-", i), 1), max(0, rand.IntN(27)-7)}
	}
	if sorted {
		slices.SortFunc(batch, func(x, y message) int { return cmp.Compare(x.sku, y.sku) })
	}
	err := s.Update(context.Background(), func(ctx context.Context, tx convergo.Tx) error {
		for _, m := range batch {
			marked, err := s.Mark(ctx, tx, "stock", m.event, false, time.Now())
			if err == nil && marked == inbox.Fresh {
				_, err = tx.ExecContext(ctx, "UPDATE stock SET n = n + 1 WHERE sku = ?", m.sku)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 1
	}
	return 0
}
