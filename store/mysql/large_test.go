package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/store/storetest"
	"github.com/convergo/convergo/testserver"
)

// The rows are written by plain SQL, as another program would, and against the contract. Ten of them show what a hundred do
// (CONVERGO_LARGE_ROWS), and take the disk less long.
func TestCaseB07ARelayReadsNoneOfManyRowsThatAreTooLarge(t *testing.T) {
	rows := 10
	if n, err := strconv.Atoi(os.Getenv("CONVERGO_LARGE_ROWS")); err == nil {
		rows = n
	}
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		size := 20_000_000
		if strings.HasSuffix(t.Name(), "/mariadb") {
			size = 15_000_000 // the server makes no larger value: max_allowed_packet
		}
		dsn := fresh(t, server)
		s := open(t, dsn, mysql.Options{})
		for _, key := range storetest.LargeKeys(rows) {
			a := convergo.Aggregate{Type: "order", ID: string(key)}
			digest, keyDigest := a.Digest(), key.Digest()
			must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO outbox_event
					(created_at, lane, aggregate_version, key_digest, aggregate_digest, topic, type, aggregate_type, aggregate_id, message_id, event_key, payload)
					VALUES (1, ?, 1, ?, ?, 'order', 'OrderChanged', 'order', ?, ?, ?, REPEAT('x', ?))`,
					int64(a.Lane()), keyDigest[:], digest[:], a.ID, "m-"+a.ID, string(key), size)
				if err == nil {
					_, err = s.Insert(ctx, tx, []convergo.Event{{
						Key: key + ":2", MessageID: "n-" + a.ID, Type: "OrderChanged", Topic: "order", Aggregate: a, Version: 2, Payload: []byte("{}"),
					}})
				}
				return err
			}))
		}
		storetest.BuryLargeRows(t, s, s, rows, size)
		db := raw(t, dsn)
		before := pagesRead(t, db)
		_, err := s.PurgeSent(t.Context(), time.Now().Add(time.Hour), 500)
		must(t, err)
		if read := pagesRead(t, db) - before; read > rows*size/16384/2 {
			t.Errorf("a purge that takes none of the dead rows has read %d pages, so the rows", read)
		}
	})
}

// pagesRead is how many pages, of 16 KiB, the server has looked at since its start.
func pagesRead(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	var name string
	must(t, db.QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_read_requests'").Scan(&name, &n))
	return n
}

// A claim that is narrow, because one before it was late, still comes to every event, each lane's in order.
func TestNarrowClaimsComeToEveryLaneAndQueueInOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		s := open(t, fresh(t, server), mysql.Options{})
		now, total := time.Now(), 0
		for n := range 4 {
			must(t, s.Update(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
				var list []convergo.Event
				for o := range 25 {
					list = append(list, event(fmt.Sprint("O-", o), n+1))
				}
				total += len(list)
				_, err := s.Insert(ctx, tx, list)
				return err
			}))
		}
		leases, err := s.Lease(t.Context(), relay.LeaseRequest{Owner: "a", Term: time.Hour})
		must(t, err)
		last, sent, failed := map[convergo.Aggregate]int64{}, 0, false
		for claims := 0; sent < total; claims++ {
			if claims > 10*total {
				t.Fatalf("%d of %d events after %d claims", sent, total, claims)
			}
			s.Narrow(3)
			c, err := s.Claim(t.Context(), leases, 100, now)
			must(t, err)
			same(t, "rows of the claim after it", s.NarrowRows(), 6)
			if len(c.Events) > 3 || !c.More {
				t.Fatalf("a claim of 3 rows has %d events, more: %v", len(c.Events), c.More)
			}
			st := relay.Settlement{Leases: leases, Now: now}
			for _, p := range c.Events {
				switch {
				case p.Held:
					st.Aside = append(st.Aside, p)
				case !failed: // its aggregate becomes a queue, which is due at once
					failed = true
					st.Failed = append(st.Failed, relay.Failure{Pending: p, Error: "weather", Place: "relay.publish", Next: now})
				case len(st.Failed) > 0 && st.Failed[0].Event.Aggregate == p.Event.Aggregate:
					st.Aside = append(st.Aside, p)
				default:
					if p.Event.Version != last[p.Event.Aggregate]+1 {
						t.Fatalf("version %d of %s after %d", p.Event.Version, p.Event.Aggregate, last[p.Event.Aggregate])
					}
					last[p.Event.Aggregate]++
					sent++
					st.Sent = append(st.Sent, p)
				}
			}
			must(t, s.Settle(t.Context(), st))
		}
		s.Narrow(2000)
		c, err := s.Claim(t.Context(), leases, 100, now)
		must(t, err)
		same(t, "events left", len(c.Events), 0)
		same(t, "rows of the claim after it, all", s.NarrowRows(), 0)
	})
}

// The next claim of a relay, too, would be late.
func TestAClaimThatIsLateIsMadeAgainWithFewRows(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		s, other := open(t, dsn, mysql.Options{}), raw(t, dsn)
		must(t, insert(t.Context(), s, event("1", 1)))
		leases, err := s.Lease(t.Context(), relay.LeaseRequest{Owner: "a", Term: time.Hour})
		must(t, err)
		conn, err := other.Conn(t.Context())
		must(t, err)
		_, err = conn.ExecContext(t.Context(), "LOCK TABLES outbox_event WRITE")
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if c, err := s.Claim(ctx, leases, 100, time.Now()); err == nil {
			t.Fatalf("%d events are claimed out of a locked table", len(c.Events))
		}
		if rows := s.NarrowRows(); rows < 1 || rows > 16 {
			t.Errorf("the next claim looks at %d rows", rows)
		}
		_, err = conn.ExecContext(t.Context(), "UNLOCK TABLES")
		must(t, err)
		must(t, conn.Close())
		for s.NarrowRows() > 0 {
			c, err := s.Claim(t.Context(), leases, 100, time.Now())
			must(t, err)
			same(t, "events", len(c.Events), 1)
		}
	})
}

func TestADeadRowWhosePayloadIsMadeToFitIsSentWhenItIsRedriven(t *testing.T) {
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		storetest.MendLargeRows(t, open(t, fresh(t, server), mysql.Options{}))
	})
}
