package mysql_test

import (
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/sqltext"
	"github.com/convergo/convergo/store/mysql"
	"github.com/convergo/convergo/testserver"
)

// hot are the statements of claims, settlements, leases and everything else that runs for each event, message, call or request.
var hot = []string{
	"InsertEvent", "NextDue", "AnyBelow", "ClaimLanes", "DueAggregates", "ClaimQueue", "DueDelayed", "PromoteDelayed", "DeleteDelayed",
	"SharedLanes", "LockLanes", "DeletePending", "DeleteWaiting", "PendingToWaiting", "WaitingAggregates", "PendingAggregate",
	"WaitingAggregate", "WaitingFailed", "BuryPending", "BuryWaiting", "BlockAggregate", "HoldAggregate", "QueueHead", "BlockWaiting",
	"UnblockEmpty", "QueueGoesOn", "DueLater", "Hasten", "JoinRelays", "ForgetRelay", "ForgetExpired", "RenewLanes", "FreeLanes", "FreeableLanes", "TakeLanes",
	"InsertMark", "FindMark", "DeleteMark", "RaiseVersion", "LockBlocked", "EnqueueMessage", "TailPosition", "HeadPosition",
	"DeadPosition", "MessageFailed", "FindPosition", "DeleteMessage", "BlockConsumer", "HoldConsumer", "BlockConsumerOnce",
	"UnblockConsumer", "ConsumerGoesOn", "DueQueues", "LockQueue", "ReadQueue", "InsertDeadLetter", "LockGroup", "AddCall", "NextCall",
	"ClaimExpiredCalls", "ClaimWaitingCalls", "StartExpiredCalls", "StartWaitingCalls", "FinishCall", "FindRequest", "RecordRequest",
	"LaneOfEvent", "FindDeadEvent", "RequeueDead", "DeleteDead", "ReleaseAggregate", "EventsBelow", "TimesBefore", "TimesAfter", "StartOfKey", "LockEvents", "LockListed", "DueSince",
	"LetterAggregate", "FindLetter", "CloseLetter", "ReleaseConsumer", "EventsAbove", "LockSent", "PurgeEvents", "PurgeDiscarded", "OldMarks",
	"PurgeMarks", "OldRequests", "PurgeRequests", "OldCalls", "PurgeCalls", "PurgeGroup",
}

// sample fills the marks of the statements: lists as long as those of a large batch.
func sample(set sqltext.Set, n int) *strings.Replacer {
	var ids, heads []string
	for i := range n {
		ids = append(ids, fmt.Sprint(i*3+1))
		if i < convergo.Lanes {
			heads = append(heads, strings.NewReplacer(":lane", fmt.Sprint(i), ":floor", fmt.Sprint(i*5), ":most", "17").Replace(set.Get("LaneHead")))
		}
	}
	digest := "x'" + strings.Repeat("ab", 32) + "'"
	return strings.NewReplacer(":lanes", "1,2,3", ":ids", strings.Join(ids, ","), ":heads", strings.Join(heads, " UNION ALL "),
		":pieces", "lane = 1 AND seq > 5 AND seq <= 90 OR lane = 2 AND seq > 7 AND seq <= 90", ":pending", set.Get("AnyPending"), ":rows", "(1,1)", ":digests", digest+",x'"+strings.Repeat("cd", 32)+"'", ":digest", digest, ":kinds", "'a','b'",
		"JSON_TABLE(?", "JSON_TABLE('["+strings.Join(ids, ",")+"]'")
}

func TestNoStatementOfTheHotPathsScansATableOrSortsOrMakesATemporaryOne(t *testing.T) {
	set, err := sqltext.Load(os.DirFS("."), "queries.sql", sqltext.MySQL)
	must(t, err)
	onBoth(t, func(t *testing.T, server *testserver.MySQL) {
		dsn := fresh(t, server)
		open(t, dsn, mysql.Options{})
		db := raw(t, dsn)
		explain := func(state string) {
			for _, name := range hot {
				for _, n := range []int{1, 3, 1000} {
					text := set.Get(name)
					if n > 1 && !strings.Contains(text, ":ids") && !strings.Contains(text, ":heads") && !strings.Contains(text, "JSON_TABLE") {
						continue
					}
					for _, fault := range faults(t, db, sample(set, n).Replace(text)) {
						t.Errorf("%s, %d in a list, %s: %s", name, n, state, fault)
					}
				}
			}
		}
		explain("empty tables")
		fill(t, db, 5)
		explain("a few rows, statistics of before")
		fill(t, db, 5000)
		explain("many rows, statistics of before")
		for _, table := range []string{"outbox_event", "outbox_pending", "outbox_delayed", "outbox_blocked", "outbox_waiting", "inbox_mark",
			"inbox_blocked", "inbox_waiting", "outside_call", "idempotency_record"} {
			rows, err := db.QueryContext(t.Context(), "ANALYZE TABLE "+table)
			must(t, err)
			must(t, rows.Close())
		}
		explain("many rows")
	})
}

// faults are the steps of a statement's plan that would read, or lock, what it does not need.
func faults(t *testing.T, db *sql.DB, query string) (found []string) {
	t.Helper()
	var args []any
	for before := range strings.SplitSeq(query, "?") {
		if words := strings.Fields(before); len(words) > 0 && (words[len(words)-1] == "LIMIT" || words[len(words)-1] == "OFFSET") {
			args = append(args, 5)
		} else {
			args = append(args, "1") // for a number too: it is a constant
		}
	}
	args = args[:len(args)-1]
	rows, err := db.QueryContext(t.Context(), "EXPLAIN "+query, args...)
	if err != nil {
		t.Fatalf("EXPLAIN %s: %v", query, err)
	}
	defer func() { must(t, rows.Close()) }()
	columns, err := rows.Columns()
	must(t, err)
	for rows.Next() {
		texts, step := make([]sql.NullString, len(columns)), map[string]string{}
		dest := make([]any, len(columns))
		for i := range texts {
			dest[i] = &texts[i]
		}
		must(t, rows.Scan(dest...))
		for i, c := range columns {
			step[c] = texts[i].String
		}
		// EXPLAIN shows the target of an INSERT as if it were read; "index" is a walk over a whole index, which a LIMIT may end.
		target := step["select_type"] == "INSERT" || step["possible_keys"] == "" && step["key"] == "" && step["rows"] == ""
		walks := step["type"] == "ALL" || step["type"] == "index" && !strings.Contains(query, "LIMIT") || strings.Contains(step["Extra"], "Range checked")
		// A UNION ALL is answered row by row; MariaDB names the list of its parts.
		united := step["select_type"] == "UNION RESULT"
		// The server keeps the rows of a JSON array, which are the statement's own argument, in memory.
		own := strings.Contains(step["Extra"], "json_table")
		derived := strings.HasPrefix(step["table"], "<") // rows of another step, the heads of the lanes
		if own || derived {
			continue
		}
		if !target && !united && walks || strings.Contains(step["Extra"], "filesort") || strings.Contains(step["Extra"], "temporary") {
			found = append(found, fmt.Sprint(step))
		}
	}
	must(t, rows.Err())
	return found
}

// fill puts n rows into each table that grows with traffic.
func fill(t *testing.T, db *sql.DB, n int) {
	t.Helper()
	numbers := fmt.Sprintf("WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < %d) ", n)
	digest := func(what string) string { return fmt.Sprintf("UNHEX(SHA2(CONCAT('%s%d-', n), 256))", what, n) }
	conn, err := db.Conn(t.Context())
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	deeper := "cte_max_recursion_depth"
	if _, err := conn.ExecContext(t.Context(), "SET SESSION "+deeper+" = 1000000"); err != nil {
		deeper = "max_recursive_iterations" // MariaDB's name
		_, err = conn.ExecContext(t.Context(), "SET SESSION "+deeper+" = 1000000")
		must(t, err)
	}
	for _, statement := range []string{
		"INSERT INTO outbox_event (created_at, deliver_at, lane, key_digest, aggregate_digest, topic, type, aggregate_type, aggregate_id, message_id, event_key, payload) " +
			numbers + "SELECT n, IF(n % 3 = 0, n, 0), n % 64, " + digest("k") + ", " + digest("a") + ", 'o', 'T', 'order', n, n, n, 'x' FROM s",
		"INSERT INTO outbox_blocked (aggregate_digest, lane, aggregate_type, aggregate_id, next_attempt_at, blocked_at) " +
			numbers + "SELECT " + digest("a") + ", n % 64, 'order', n, n, n FROM s",
		"INSERT INTO outbox_waiting (seq, event_id, aggregate_digest) " + numbers + fmt.Sprintf("SELECT n + %d, n, ", n*10) + digest("a") + " FROM s",
		"INSERT INTO inbox_mark (consumer, key_digest, payload_digest, marked_at) " + numbers + "SELECT 'stock', " + digest("k") + ", '', n FROM s",
		"INSERT INTO inbox_blocked (consumer, aggregate_digest, aggregate_type, aggregate_id, next_attempt_at, blocked_at) " +
			numbers + "SELECT 'stock', " + digest("a") + ", 'order', n, n, n FROM s",
		"INSERT INTO inbox_waiting (consumer, key_digest, aggregate_digest, position, enqueued_at, created_at, aggregate_version, topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload) " +
			numbers + "SELECT 'stock', " + digest("k") + ", " + digest("a") + ", n, n, n, n, 'o', 'T', 'order', n, n, n, '{}', 'x' FROM s",
		"INSERT INTO outside_call (kind, call_key, key_digest, call_group, state, next_at, lease_until, created_at, updated_at, payload) " +
			numbers + "SELECT 'a', n, " + digest("k") + ", IF(n % 2, '', n % 50), n % 4, n, n, n, n, 'x' FROM s",
		"INSERT INTO idempotency_record (scope, key_digest, request_key, fingerprint, status, created_at, header, body) " +
			numbers + "SELECT 's', " + digest("k") + ", n, '', 200, n, '{}', '' FROM s",
	} {
		if _, err := conn.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}
