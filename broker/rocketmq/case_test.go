package rocketmq

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/sqlite"
)

// The same business message comes under three message ids and, once, with a key for queries that Apache's Go client has
// appended a blank to. A fourth has the blank in our own header, and is no event.
func TestCaseB27ADuplicateIsKnownByOurHeaderAndNeverByTheBrokersIDs(t *testing.T) {
	b := open(t, configOf(shared(t), prefix()))
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "points.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	e := paid("O-55", 1)
	e.Key = "O-55:paid"
	subject := convergo.Subject{Topic: "order", Type: "OrderPaid"}
	for _, foreign := range []map[string]string{
		{propertyUniqueID: "AAA1", propertyKeys: "O-55:paid"}, {propertyUniqueID: "BBB2", propertyKeys: "O-55:paid"},
		{propertyUniqueID: "CCC3", propertyKeys: "O-55:paid "},
		{propertyUniqueID: "DDD4", convergo.HeaderKey: "O-55:paid "},
	} {
		headers := e.Wire()
		for name, value := range foreign {
			headers[name] = value
		}
		if err := b.raw(t.Context(), subject, headers, e.Payload); err != nil {
			t.Fatal(err)
		}
	}
	var effects atomic.Int64
	consumer := inbox.New[convergo.Tx](db, db, subscribe(t, b, "points"), inbox.Config{Consumer: "points", Log: slog.New(slog.DiscardHandler)})
	consumer.Handle("OrderPaid", func(context.Context, convergo.Tx, convergo.Event) error {
		effects.Add(1)
		return nil
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- consumer.Run(ctx) }()
	dead := func() (n int) {
		if err := db.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			return tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM inbox_dead").Scan(&n)
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	eventually(t, "the one that is no event is among the dead", func() bool { return dead() == 1 })
	publish(t, b, paid("O-56", 1))
	last := paid("O-56", 1).Key.Digest()
	applied := func() (n int) {
		if err := db.View(t.Context(), func(ctx context.Context, tx convergo.Tx) error {
			return tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM inbox_mark WHERE key_digest = ?", last[:]).Scan(&n)
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	eventually(t, "the other order is applied", func() bool { return applied() == 1 })
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if n := effects.Load(); n != 2 {
		t.Errorf("%d effects of two orders, want 2", n)
	}
}

func TestAKeyWithABlankIsNoKeyForQueriesAndComesOutWhole(t *testing.T) {
	e := paid("O 1", 1)
	m := encode(e)
	if p := readProperties(m.properties); p[propertyKeys] != "" || p[convergo.HeaderKey] != string(e.Key) {
		t.Errorf("keys %q, header %q", p[propertyKeys], p[convergo.HeaderKey])
	}
	if p := readProperties(encode(paid("O-1", 1)).properties); p[propertyKeys] != "OrderPaid:O-1:v1" || p[propertyTags] != "OrderPaid" {
		t.Errorf("a key without a blank: keys %q, tags %q", p[propertyKeys], p[propertyTags])
	}
}

func TestHeadersThatRocketMQWouldActOnComeOutAsTheyWentIn(t *testing.T) {
	b := open(t, configOf(shared(t), prefix()))
	s := subscribe(t, b, "points")
	e := paid("O-1", 1)
	e.Headers = map[string]string{
		"DELAY": "18", "KEYS": "other", "TAGS": "Other", "TRAN_MSG": "true", "__STARTDELIVERTIME": "9999999999999", "UNIQ_KEY": "x", "Empty": "",
		"Raw": "raw:x", "Convergo-Escaped-DELAY": "2", "Convergo-Empty-Payload": "true", "RECONSUME_TIME": "16", "TIMER_DELAY_SEC": "60",
	}
	publish(t, b, e)
	got := fetch(t, s, 1)[0]
	if got.Malformed != nil || len(got.Event.Headers) != len(e.Headers) {
		t.Errorf("malformed %v, headers %v", got.Malformed, got.Event.Headers)
	}
	for name, value := range e.Headers {
		if got.Event.Headers[name] != value {
			t.Errorf("%s: %q, want %q", name, got.Event.Headers[name], value)
		}
	}
}

func TestTheStartUpCheckNamesWhatCanBeLost(t *testing.T) {
	b := open(t, configOf(shared(t), prefix()))
	found, err := b.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || !strings.HasPrefix(found[0].Setting, "brokerRole") || found[0].Value != "ASYNC_MASTER" {
		t.Errorf("found %v, want only that the master is alone", found)
	}
	lax := judge("a", map[string]string{"flushDiskType": "ASYNC_FLUSH", "brokerRole": "SYNC_MASTER", "inSyncReplicas": "1",
		"autoCreateTopicEnable": "true", "fileReservedTime": "48", "maxMessageSize": "65536", "transientStorePoolEnable": "true"})
	var named []string
	for _, w := range lax {
		named = append(named, strings.Fields(w.Setting)[0])
	}
	if got := strings.Join(named, " "); got != "flushDiskType inSyncReplicas transientStorePoolEnable autoCreateTopicEnable fileReservedTime maxMessageSize" {
		t.Errorf("named %s", got)
	}
	if good := judge("a", map[string]string{"flushDiskType": "SYNC_FLUSH", "brokerRole": "SYNC_MASTER", "inSyncReplicas": "2",
		"fileReservedTime": "72", "maxMessageSize": "4194304"}); len(good) != 0 {
		t.Errorf("a safe broker is warned of: %v", good)
	}
}
