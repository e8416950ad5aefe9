package check_test

import "strings"

func effectDamage() []damage {
	return []damage{
		{name: "effect missing", equation: effectRows, pick: reserved, do: []string{`DELETE FROM inventory.effect WHERE effect_key = :k`}},
		{name: "effect without a row", equation: effectRows, do: []string{`INSERT INTO shipping.effect SELECT 'another digest', 'SHIP2:' || order_no, order_no, kind, reverses, NULL, cause, detail, at FROM shipping.effect WHERE kind = 'shipping.ship' LIMIT 1`}, want: "SHIP2:"},
		{name: "gift doubled with its balance", equation: effectRows, do: []string{`INSERT INTO points.points_entry SELECT entry_key || ':2', user_id, kind, points, locked, order_no, cause, at FROM points.points_entry WHERE entry_key = 'GRANT:opening:member-01'`,
			`UPDATE points.points_account SET balance = balance + (SELECT points FROM points.points_entry WHERE entry_key = 'GRANT:opening:member-01') WHERE user_id = 'member-01'`}, want: "GRANT:opening:member-01:2"},
		{name: "stock received out of nothing", equation: effectRows, pick: anSKU, do: []string{`INSERT INTO inventory.stock_flow SELECT flow_key || ':2', sku, kind, 5, order_no, cause, at FROM inventory.stock_flow WHERE kind = 'RECEIVE' AND sku = :k`,
			`UPDATE inventory.stock SET on_hand = on_hand + 5 WHERE sku = :k`}},
		{name: "row with another cause", equation: effectRows, pick: reserved, do: []string{`UPDATE inventory.stock_flow SET cause = 'OrderCreated:NO-SUCH' WHERE flow_key = :k`}},
		{name: "effect of another order", equation: effectRows, pick: reserved, do: []string{`UPDATE inventory.effect SET order_no = 'NO-SUCH' WHERE effect_key = :k`}},
		{name: "redeemed without an effect", equation: effectRows, pick: discounted, do: []string{`DELETE FROM coupon.effect WHERE order_no = :k AND kind = 'coupon.redeem'`}},
		{name: "decided without an effect", equation: effectRows, pick: done, do: []string{`DELETE FROM risk.effect WHERE order_no = :k`}},
		{name: "compensation of nothing", equation: compensations, pick: released, do: []string{`UPDATE inventory.effect SET reverses = 'RESERVE:NO-SUCH:X' WHERE effect_key = :k`}},
		{name: "compensation of another order", equation: compensations, pick: released, do: []string{`UPDATE inventory.effect SET reverses = (SELECT effect_key FROM inventory.effect WHERE kind = 'stock.reserve' AND effect_key NOT IN (SELECT reverses FROM inventory.effect)
			LIMIT 1) WHERE effect_key = :k`}},
		{name: "compensated twice", equation: compensations, pick: `SELECT reverses FROM inventory.effect WHERE kind = 'stock.release' LIMIT 1`, do: []string{`INSERT INTO inventory.effect SELECT 'another digest', effect_key || ':2', order_no, kind, reverses, NULL, cause, detail, at
			FROM inventory.effect WHERE reverses = :k`}, want: "is reversed 2 times"},
		{name: "compensation of the wrong kind", equation: compensations, pick: released, do: []string{`UPDATE inventory.effect SET kind = 'stock.deduct' WHERE effect_key = :k`}},
		{name: "release that reverses nothing", equation: compensations, pick: released, do: []string{`UPDATE inventory.effect SET reverses = '' WHERE effect_key = :k`}},
		{name: "no cause", equation: effectCause, pick: reserved, do: []string{`UPDATE inventory.effect SET cause = '' WHERE effect_key = :k`}},
		{name: "cause that does not exist", equation: effectCause, pick: reserved, do: []string{`UPDATE inventory.effect SET cause = 'OrderCreated:NO-SUCH:v1' WHERE effect_key = :k`}},
		{name: "cause deleted", equation: effectCause, pick: `SELECT 'POINT_LOCK:' || order_no FROM points.points_order WHERE locked > 0 LIMIT 1`, do: []string{`DELETE FROM "order".outbox_event WHERE type = 'OrderCreated' AND aggregate_id = SUBSTR(:k, 12)`}},
		{name: "request never recorded", equation: effectCause, do: []string{`DELETE FROM inventory.idempotency_record WHERE request_key = 'opening:HOT-1'`}, want: "RECEIVE:opening:HOT-1"},
	}
}

func eventDamage() []damage {
	paidEvent := `SELECT event_key FROM "order".outbox_event WHERE type = 'OrderPaid' AND aggregate_id NOT LIKE 'POISON%' LIMIT 1`
	const parked = `consumer, 'OPEN', hold, key_digest, aggregate_digest, position, attempts, died_at, closed_at, closed_by, reason, place, error, created_at, aggregate_version, max_attempts,
		topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload`
	return []damage{
		{name: "event missing that nobody wants", equation: said, pick: `SELECT aggregate_id FROM coupon.outbox_event WHERE type = 'CouponRedeemed' LIMIT 1`,
			do: []string{`DELETE FROM coupon.outbox_event WHERE type = 'CouponRedeemed' AND aggregate_id = :k`}},
		{name: "first event missing", equation: said, pick: `SELECT aggregate_id FROM "order".outbox_event WHERE id = 1`, do: []string{`DELETE FROM "order".outbox_event WHERE id = 1`}},
		{name: "event twice under another key", equation: said, pick: done, do: []string{`INSERT INTO "order".outbox_event (created_at, lane, key_digest, aggregate_digest, topic, type, aggregate_type, aggregate_id, message_id, event_key, payload)
			SELECT created_at, lane, zeroblob(32), aggregate_digest, topic, type, aggregate_type, aggregate_id, message_id, event_key || ':2', payload FROM "order".outbox_event WHERE type = 'OrderPaid' AND aggregate_id = :k`}},
		{name: "event twice, given up by one service and applied by another", equation: said, pick: done, do: []string{`INSERT INTO "order".outbox_event (created_at, lane, key_digest, aggregate_digest, topic, type, aggregate_type, aggregate_id, message_id, event_key, payload)
			SELECT created_at, lane, zeroblob(32), aggregate_digest, topic, type, aggregate_type, aggregate_id, message_id, event_key || ':2', payload FROM "order".outbox_event WHERE type = 'OrderPaid' AND aggregate_id = :k`,
			`INSERT INTO ledger.inbox_dead SELECT 1000, 'another id', ` + strings.NewReplacer("'OPEN'", "'DISCARDED'", "key_digest,", "zeroblob(32),").Replace(parked) + ` FROM ledger.inbox_dead LIMIT 1`,
			`INSERT INTO ledger.inbox_mark (marked_at, consumer, key_digest, payload_digest) SELECT marked_at, consumer, zeroblob(32), payload_digest FROM ledger.inbox_mark LIMIT 1`,
			`INSERT INTO points.inbox_mark (marked_at, consumer, key_digest, payload_digest) SELECT marked_at, consumer, zeroblob(32), payload_digest FROM points.inbox_mark LIMIT 1`}},
		{name: "event of something that never happened", equation: said, pick: canceled, do: []string{`UPDATE "order".outbox_event SET type = 'OrderCompleted' WHERE type = 'OrderCanceled' AND aggregate_id = :k`}},
		{name: "mark removed", equation: applied, pick: paidEvent, do: []string{`DELETE FROM ledger.inbox_mark WHERE key_digest = (SELECT key_digest FROM "order".outbox_event WHERE event_key = :k)`}, want: "→ ledger"},
		{name: "all marks removed", equation: applied, pick: paidEvent, do: []string{`DELETE FROM points.inbox_mark WHERE key_digest = (SELECT key_digest FROM "order".outbox_event WHERE event_key = :k)`}},
		{name: "event deleted after it was applied", equation: unwritten, pick: paidEvent, do: []string{`DELETE FROM "order".outbox_event WHERE event_key = :k`}, want: "no outbox has such an event"},
		{name: "mark in a foreign database", equation: unwritten, pick: paidEvent, do: []string{`INSERT INTO risk.inbox_mark (marked_at, consumer, key_digest, payload_digest) SELECT marked_at, consumer, key_digest, payload_digest
			FROM ledger.inbox_mark WHERE key_digest = (SELECT key_digest FROM "order".outbox_event WHERE event_key = :k)`}, want: "in the database of risk"},
		{name: "applied by who does not want it", equation: unwritten, pick: paidEvent, do: []string{`INSERT INTO risk.inbox_mark (marked_at, consumer, key_digest, payload_digest) SELECT marked_at, 'risk', key_digest, payload_digest
			FROM ledger.inbox_mark WHERE key_digest = (SELECT key_digest FROM "order".outbox_event WHERE event_key = :k)`}},
		{name: "never sent", equation: waits, pick: paidEvent, do: []string{`INSERT INTO "order".outbox_pending (lane, event_id) SELECT lane, id FROM "order".outbox_event WHERE event_key = :k`}},
		{name: "pending without its event", equation: waits, do: []string{`INSERT INTO risk.outbox_pending (lane, event_id) VALUES (1, 999999)`}, want: "an event that is not there"},
		{name: "overdue", equation: waits, pick: paidEvent, do: []string{`INSERT INTO "order".outbox_delayed (event_id, lane, deliver_at) SELECT id, lane, 1 FROM "order".outbox_event WHERE event_key = :k`}},
		{name: "delayed until another time than the event says", equation: waits, pick: `SELECT event_key FROM "order".outbox_event WHERE type = 'OrderTimeout' LIMIT 1`,
			do: []string{`INSERT INTO "order".outbox_delayed (event_id, lane, deliver_at) SELECT id, lane, 4102444800000000 FROM "order".outbox_event WHERE event_key = :k`}},
		{name: "behind a blocked aggregate", equation: waits, pick: paidEvent, do: []string{`INSERT INTO "order".outbox_waiting (seq, event_id, aggregate_digest) SELECT 1, id, aggregate_digest FROM "order".outbox_event WHERE event_key = :k`}},
		{name: "blocked in the outbox", equation: waits, do: []string{`INSERT INTO "order".outbox_blocked (aggregate_digest, lane, aggregate_type, aggregate_id, next_attempt_at, blocked_at) VALUES (zeroblob(32), 0, 'order', 'STUCK', 1, 1)`}, want: "order/STUCK"},
		{name: "blocked in the inbox", equation: waits, do: []string{`INSERT INTO ledger.inbox_blocked (consumer, aggregate_digest, aggregate_type, aggregate_id, next_attempt_at, blocked_at) VALUES ('ledger', zeroblob(32), 'order', 'STUCK', 1, 1)`}, want: "order/STUCK"},
		{name: "waiting in the inbox", equation: waits, pick: paidEvent, do: []string{`INSERT INTO ledger.inbox_waiting (consumer, key_digest, aggregate_digest, position, enqueued_at, created_at, aggregate_version, topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload)
			SELECT 'ledger', key_digest, aggregate_digest, 1, 1, created_at, aggregate_version, topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload FROM "order".outbox_event WHERE event_key = :k`}},
		{name: "open in the inbox", equation: letters, do: []string{`INSERT INTO ledger.inbox_dead SELECT 1000, 'another id', ` + parked + ` FROM ledger.inbox_dead LIMIT 1`}, want: "ledger OrderPaid:POISON-1"},
		{name: "open in the outbox", equation: letters, pick: paidEvent, do: []string{`INSERT INTO "order".outbox_dead SELECT id, 1, 1, 16, 1, aggregate_digest, 'publish', 'broker said no' FROM "order".outbox_event WHERE event_key = :k`}},
		{name: "dead without its event", equation: letters, do: []string{`INSERT INTO "order".outbox_dead VALUES (999999, 1, 1, 16, 1, zeroblob(32), 'publish', 'broker said no')`}, want: "an event that is not there"},
		{name: "given up", equation: calls, pick: `SELECT call_key FROM shipping.outside_call WHERE kind = 'carrier.book' LIMIT 1`, do: []string{`UPDATE shipping.outside_call SET state = 3, error = 'no' WHERE call_key = :k`}},
		{name: "left waiting", equation: calls, pick: `SELECT call_key FROM notification.outside_call LIMIT 1`, do: []string{`UPDATE notification.outside_call SET state = 0, next_at = 1 WHERE call_key = :k`}},
		{name: "tried again and again", equation: calls, pick: `SELECT call_key FROM notification.outside_call LIMIT 1`, do: []string{`UPDATE notification.outside_call SET state = 0, attempts = 3, next_at = 4102444800000000 WHERE call_key = :k`}},
		{name: "started and never ended", equation: calls, pick: `SELECT call_key FROM payment.outside_call WHERE kind = 'channel.close' LIMIT 1`, do: []string{`UPDATE payment.outside_call SET state = 1 WHERE call_key = :k`}},
		{name: "payload changed after it was applied", equation: asWritten, pick: paidEvent, do: []string{`UPDATE "order".outbox_event SET payload = CAST(REPLACE(CAST(payload AS TEXT), 'GBP', 'EUR') AS BLOB) WHERE event_key = :k`}},
		{name: "key changed", equation: asWritten, pick: paidEvent, do: []string{`UPDATE "order".outbox_event SET event_key = 'OrderPaid:NO-SUCH' WHERE event_key = :k`}, want: "OrderPaid:NO-SUCH"},
		{name: "lane changed", equation: asWritten, pick: paidEvent, do: []string{`UPDATE "order".outbox_event SET lane = (lane + 1) % 64 WHERE event_key = :k`}},
		{name: "aggregate changed", equation: asWritten, pick: paidEvent, do: []string{`UPDATE "order".outbox_event SET aggregate_id = 'NO-SUCH' WHERE event_key = :k`}},
	}
}
