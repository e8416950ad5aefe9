package postgres_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/store/postgres"
	"github.com/convergo/convergo/store/storetest"
)

func TestTimesInAnotherUnitAreFoundWithTheirUnit(t *testing.T) {
	server := shared(t)
	storetest.TellOddTimes(t, openOn(t, server.DSN("postgres"), postgres.Options{Schema: server.Name("times")}))
}

// The statistics know of none of the rows, then of all: neither has the server read more than a look is allowed, nor sort.
func TestTheLookAtTimesReadsByAnIndexWhateverTheStatisticsSay(t *testing.T) {
	server := shared(t)
	schema := server.Name("times")
	s := openOn(t, server.DSN("postgres"), postgres.Options{Schema: schema})
	db := foreign(t, server)
	actual := regexp.MustCompile(`actual time=\S+ rows=(\d+)`)
	run := func(statement string) {
		t.Helper()
		_, err := db.ExecContext(t.Context(), strings.ReplaceAll(statement, "outbox_event", schema+".outbox_event"))
		must(t, err)
	}
	look := func(state string) {
		t.Helper()
		lines, err := s.TimesPlans(t.Context())
		must(t, err)
		plan := strings.Join(lines, "\n")
		if strings.Contains(plan, "Seq Scan") || strings.Contains(plan, "Sort") || strings.Contains(plan, "Bitmap") || strings.Contains(plan, "hashed") {
			t.Errorf("%s:\n%s", state, plan)
		}
		for _, step := range actual.FindAllStringSubmatch(plan, -1) {
			if rows, err := strconv.Atoi(step[1]); err != nil || rows > ops.MostOddTimes {
				t.Errorf("%s: %s rows in a step, %v:\n%s", state, step[1], err, plan)
			}
		}
	}
	run("ALTER TABLE outbox_event SET (autovacuum_enabled = off)")
	run("ANALYZE outbox_event")
	look("empty")
	run(`INSERT INTO outbox_event (message_id, event_key, key_digest, topic, type, aggregate_type, aggregate_id, aggregate_digest, lane, payload, deliver_at, created_at)
 SELECT n, n, sha256(n::text::bytea), 'o', 'T', 'order', n, sha256(n::text::bytea), n % 64, repeat('x', 300)::bytea, CASE WHEN n % 2 = 0 THEN 1764504000 + n ELSE 0 END, 1764504000000000
 FROM generate_series(1, 20000) AS n`)
	look("many rows, statistics of before")
	run("ANALYZE outbox_event")
	look("many rows")
}
