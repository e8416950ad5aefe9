package sqlite_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/sqltext"
	"github.com/convergo/convergo/store/sqlite"
)

// big are the tables that grow with traffic.
var big = []string{
	"outbox_event", "outbox_pending", "outbox_delayed", "outbox_blocked", "outbox_waiting", "inbox_mark", "inbox_version", "inbox_blocked",
	"inbox_waiting", "outside_call", "idempotency_record", "machine_transition",
}

// names that the statements give those tables.
var alias = map[string]string{
	"s": "outbox_pending", "p": "outbox_pending", "d": "outbox_delayed", "b": "outbox_blocked", "w": "outbox_waiting", "e": "outbox_event",
	"c": "outside_call", "o": "outside_call",
}

func TestNoStatementOfTheHotPathsScansATableOrSortsABacklog(t *testing.T) {
	s := open(t, sqlite.Options{})
	set, err := sqltext.Load(os.DirFS("."), "queries.sql", sqltext.SQLite)
	must(t, err)
	for _, name := range []string{
		"InsertEvent", "NextDue", "ClaimLanes", "DueLanes", "DueAggregates", "ClaimQueue", "DueDelayed", "PromoteDelayed", "DeleteDelayed",
		"LeasesStand", "DeletePending", "DeleteWaiting", "WaitingAggregates", "PendingAggregate", "WaitingAggregate", "PendingToWaiting", "WaitingFailed", "BuryPending", "BuryWaiting", "BlockWaiting",
		"UnblockEmpty", "QueueGoesOn", "Hasten", "InsertMark", "FindMark", "DeleteMark", "RaiseVersion", "AnyBlocked", "BlockedOf", "EnqueueMessage",
		"EnqueueHead", "MessageFailed", "FindPosition", "HeadPosition", "DeleteMessage", "UnblockConsumer", "ConsumerGoesOn", "DueQueues",
		"ReadQueue", "AddCall", "NextCall", "ClaimExpiredCalls", "ClaimWaitingCalls", "FinishCall", "FindRequest", "RecordRequest",
		"FindDeadEvent", "RequeueDead", "ReleaseAggregate", "FindLetter", "ReleaseConsumer", "EventsBelow", "TimesBefore", "TimesAfter", "StartOfKey", "EventsAbove", "DueSince", "PurgeMarks", "PurgeRequests", "PurgeCalls",
	} {
		for _, step := range plan(t, s, set.Get(name)) {
			table, scans := strings.CutPrefix(step, "SCAN ")
			table, _, _ = strings.Cut(table, " ")
			if full, ok := alias[table]; ok {
				table = full
			}
			bounded := strings.HasPrefix(name, "Events") || strings.HasPrefix(name, "Purge") || // a window by primary key, with a LIMIT
				strings.Contains(step, "outside_call_waiting") || strings.Contains(step, "outside_call_started") // open ones only, by time
			if scans && !bounded && contains(big, table) || strings.Contains(step, "TEMP B-TREE") {
				t.Errorf("%s: %s", name, step)
			}
		}
	}
}

func contains(list []string, item string) bool {
	for _, l := range list {
		if l == item {
			return true
		}
	}
	return false
}

// plan is how SQLite would run the statement, one line a step.
func plan(t *testing.T, s *sqlite.Store, query string) (steps []string) {
	t.Helper()
	must(t, s.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
		args := make([]any, strings.Count(query, "?"))
		for i := range args {
			args[i] = 1
		}
		rows, err := tx.QueryContext(ctx, "EXPLAIN QUERY PLAN "+query, args...)
		must(t, err)
		defer func() { must(t, rows.Close()) }()
		for rows.Next() {
			var id, parent, unused int
			var detail string
			must(t, rows.Scan(&id, &parent, &unused, &detail))
			steps = append(steps, detail)
		}
		return rows.Err()
	}))
	if len(steps) == 0 && !strings.HasPrefix(query, "INSERT") {
		t.Errorf("no plan for %s", query)
	}
	if testing.Verbose() {
		t.Log(query, "\n", strings.Join(steps, "\n "))
	}
	return steps
}
