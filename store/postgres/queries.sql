-- Statements of the PostgreSQL store. Transactions are READ COMMITTED: every statement sees what was committed before it
-- began, so a statement that decides on other rows comes after the one that locks what guards them. Rows that several
-- transactions lock are locked in the order of their keys. Lists are arrays: one statement for a batch of any size. Leases
-- live by clock_timestamp(), the database's own clock; now() would stand still during a transaction. Tables are
-- qualified with the store's schema when the statements are loaded.

-- Outbox -------------------------------------------------------------------------------------------------------------

-- name: InsertEvent
-- One statement for the event and what makes it pending, without the trigger. Only a key that is there already is skipped (one
-- that another open transaction has inserted is waited for); a broken CHECK is an error. One row is affected, or none. The event is
-- there before its seq is drawn: see floor.go.
WITH e AS (
       INSERT INTO outbox_event (queued, created_at, deliver_at, lane, aggregate_version, max_attempts, key_digest, aggregate_digest,
                                 topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload)
       VALUES (1, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) ON CONFLICT DO NOTHING RETURNING id, lane)
INSERT INTO outbox_pending (lane, event_id) SELECT e.lane, e.id FROM e

-- name: InsertDelayed
-- The same for an event that is to be delivered later.
WITH e AS (
       INSERT INTO outbox_event (queued, created_at, deliver_at, lane, aggregate_version, max_attempts, key_digest, aggregate_digest,
                                 topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload)
       VALUES (1, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) ON CONFLICT DO NOTHING RETURNING id, lane, deliver_at)
INSERT INTO outbox_delayed (event_id, lane, deliver_at) SELECT e.id, e.lane, e.deliver_at FROM e

-- name: NextDue
-- One probe of an index a lane: the next delayed event after $2 and the lane's floor, the next retry after $2. Then what changed
-- since the last claim: see floor.go. The last is whether any of the 64 lanes has no owner; one that was given back ended at 0.
-- Locks nothing, like all statements of a claim.
SELECT (SELECT min(x.deliver_at) FROM unnest($1::smallint[], $3::bigint[]) AS l (lane, floor)
         CROSS JOIN LATERAL (SELECT d.deliver_at FROM outbox_delayed AS d WHERE d.lane = l.lane AND d.deliver_at > greatest($2, l.floor)
                              ORDER BY d.lane, d.deliver_at LIMIT 1) AS x),
       (SELECT min(x.next_attempt_at) FROM unnest($1::smallint[]) AS l (lane)
         CROSS JOIN LATERAL (SELECT b.next_attempt_at FROM outbox_blocked AS b WHERE b.lane = l.lane AND b.held = 0 AND b.next_attempt_at > $2
                              ORDER BY b.lane, b.held, b.next_attempt_at LIMIT 1) AS x),
       s.last_value, txid_current_snapshot()::text, pg_postmaster_start_time(),
       EXISTS (SELECT 1 FROM outbox_lane AS o WHERE o.expires_at <= (extract(epoch FROM statement_timestamp()) * 1000000)::bigint)
  FROM outbox_pending_seq AS s

-- name: ClaimLanes
-- The first $3 rows of each lane from its floor on, and one more without its event, which tells that there is more. OFFSET 0
-- keeps the planner from joining whole tables. Whether an aggregate is blocked is one probe of an index for each event. What is
-- larger than 16384 bytes comes without its texts and bytes; a length stands where the row does, and not with what is stored elsewhere.
SELECT l.lane, p.seq, p.n, p.event_id, e.*
  FROM unnest($1::smallint[], $2::bigint[]) AS l (lane, floor)
 CROSS JOIN LATERAL (
       SELECT q.seq, q.event_id, row_number() OVER (ORDER BY q.seq) AS n
         FROM (SELECT o.seq, o.event_id FROM outbox_pending AS o WHERE o.lane = l.lane AND o.seq >= l.floor
                ORDER BY o.lane, o.seq LIMIT $3::bigint + 1) AS q) AS p
  LEFT JOIN LATERAL (
       SELECT EXISTS (SELECT 1 FROM outbox_blocked AS b WHERE b.aggregate_digest = o.aggregate_digest) AS held,
              o.created_at, o.deliver_at, o.aggregate_version, o.max_attempts,
              CASE WHEN o.fits THEN o.topic END, CASE WHEN o.fits THEN o.type END,
              CASE WHEN o.fits THEN o.aggregate_type END, CASE WHEN o.fits THEN o.aggregate_id END,
              CASE WHEN o.fits THEN o.message_id END, CASE WHEN o.fits THEN o.event_key END,
              CASE WHEN o.fits THEN o.headers END, CASE WHEN o.fits THEN o.payload END
         FROM (SELECT v.*, octet_length(v.payload) <= 16384 AND octet_length(v.headers) + octet_length(v.topic) + octet_length(v.type)
                          + octet_length(v.aggregate_type) + octet_length(v.aggregate_id) + octet_length(v.message_id) + octet_length(v.event_key) <= 16384 AS fits
                 FROM outbox_event AS v WHERE v.id = p.event_id AND p.n <= $3::bigint OFFSET 0) AS o) AS e ON true

-- name: DueLanes
SELECT l.lane FROM unnest($1::smallint[]) AS l (lane)
 WHERE EXISTS (SELECT 1 FROM outbox_blocked AS b WHERE b.lane = l.lane AND b.held = 0 AND b.next_attempt_at <= $2)

-- name: ClaimQueue
-- The due queues of a lane, $3 events in all. One that has failed before is the last of its queue, so that the others do not
-- fail with it. What is larger than 16384 bytes comes without its texts and bytes.
SELECT w.seq, w.attempts, w.event_id,
       e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts,
       CASE WHEN e.fits THEN e.topic END, CASE WHEN e.fits THEN e.type END,
       CASE WHEN e.fits THEN e.aggregate_type END, CASE WHEN e.fits THEN e.aggregate_id END,
       CASE WHEN e.fits THEN e.message_id END, CASE WHEN e.fits THEN e.event_key END,
       CASE WHEN e.fits THEN e.headers END, CASE WHEN e.fits THEN e.payload END
  FROM (SELECT b.aggregate_digest, b.next_attempt_at FROM outbox_blocked AS b
         WHERE b.lane = $1 AND b.held = 0 AND b.next_attempt_at <= $2 ORDER BY b.next_attempt_at LIMIT $3) AS d
 CROSS JOIN LATERAL (
       SELECT q.seq, q.event_id, q.attempts,
              max(q.attempts) OVER (ORDER BY q.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS failed
         FROM (SELECT o.seq, o.event_id, o.attempts FROM outbox_waiting AS o WHERE o.aggregate_digest = d.aggregate_digest
                ORDER BY o.aggregate_digest, o.seq LIMIT $3) AS q) AS w
 CROSS JOIN LATERAL (
       SELECT v.*, octet_length(v.payload) <= 16384 AND octet_length(v.headers) + octet_length(v.topic) + octet_length(v.type)
              + octet_length(v.aggregate_type) + octet_length(v.aggregate_id) + octet_length(v.message_id) + octet_length(v.event_key) <= 16384 AS fits
         FROM outbox_event AS v WHERE v.id = w.event_id OFFSET 0) AS e
 WHERE coalesce(w.failed, 0) = 0
 ORDER BY d.next_attempt_at, d.aggregate_digest, w.seq LIMIT $3

-- name: EventSizes
-- What is known of large events without reading what is large. The last eight are lengths.
SELECT e.id, e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts,
       CASE WHEN octet_length(e.topic) <= 100 THEN e.topic ELSE '' END, CASE WHEN octet_length(e.type) <= 100 THEN e.type ELSE '' END,
       CASE WHEN octet_length(e.aggregate_type) <= 100 THEN e.aggregate_type ELSE '' END,
       CASE WHEN octet_length(e.aggregate_id) <= 255 THEN e.aggregate_id ELSE '' END,
       CASE WHEN octet_length(e.message_id) <= 255 THEN e.message_id ELSE '' END,
       CASE WHEN octet_length(e.event_key) <= 255 THEN e.event_key ELSE '' END, '{}', ''::bytea,
       octet_length(e.topic)::bigint, octet_length(e.type)::bigint, octet_length(e.aggregate_type)::bigint, octet_length(e.aggregate_id)::bigint,
       octet_length(e.message_id)::bigint, octet_length(e.event_key)::bigint, octet_length(e.headers)::bigint, octet_length(e.payload)::bigint
  FROM unnest($1::bigint[]) AS j (id)
 CROSS JOIN LATERAL (SELECT * FROM outbox_event AS v WHERE v.id = j.id OFFSET 0) AS e

-- name: LargeEvents
SELECT e.id, e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts, e.topic, e.type, e.aggregate_type, e.aggregate_id,
       e.message_id, e.event_key, e.headers, e.payload
  FROM unnest($1::bigint[]) AS j (id)
 CROSS JOIN LATERAL (SELECT * FROM outbox_event AS v WHERE v.id = j.id OFFSET 0) AS e

-- name: PromoteDelayed
-- What two relays find due at once the first one deletes; the other waits for it, finds the rows gone and inserts nothing.
-- The rows join their lane in the order of their times.
WITH due AS MATERIALIZED (
       SELECT d.event_id FROM unnest($1::smallint[], $4::bigint[]) AS l (lane, floor)
         JOIN outbox_delayed AS d ON d.lane = l.lane AND d.deliver_at > l.floor AND d.deliver_at <= $2
        ORDER BY d.lane, d.deliver_at, d.event_id LIMIT $3 FOR UPDATE OF d),
     gone AS (
       DELETE FROM outbox_delayed AS d USING due WHERE d.event_id = due.event_id RETURNING d.event_id, d.lane, d.deliver_at)
INSERT INTO outbox_pending (lane, event_id) SELECT g.lane, g.event_id FROM gone AS g ORDER BY g.lane, g.deliver_at, g.event_id

-- name: LeasesStand
-- Locked until the settling transaction ends: nobody can take a lane over, or settle under it, before that.
SELECT count(*) FROM (
       SELECT l.lane FROM outbox_lane AS l JOIN unnest($1::smallint[], $2::bigint[]) AS h (lane, token) ON l.lane = h.lane AND l.token = h.token
        WHERE l.owner <> '' AND l.expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        ORDER BY l.lane FOR NO KEY UPDATE OF l) AS s

-- name: SettleSent
-- A batch that was sent, in one statement that is its own transaction: the lanes are locked as in LeasesStand, then the rows
-- go if all leases stand. The transaction's number is for floor.go.
WITH stand AS MATERIALIZED (
       SELECT l.lane FROM outbox_lane AS l JOIN unnest($1::smallint[], $2::bigint[]) AS h (lane, token) ON l.lane = h.lane AND l.token = h.token
        WHERE l.owner <> '' AND l.expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        ORDER BY l.lane FOR NO KEY UPDATE OF l),
     gone AS (
       DELETE FROM outbox_pending AS p USING unnest($3::smallint[], $4::bigint[]) AS s (lane, seq)
        WHERE p.lane = s.lane AND p.seq = s.seq AND (SELECT count(*) FROM stand) = cardinality($1::smallint[]))
SELECT (SELECT count(*) FROM stand), txid_current()

-- name: DeletePending
DELETE FROM outbox_pending AS p USING unnest($1::smallint[], $2::bigint[]) AS s (lane, seq) WHERE p.lane = s.lane AND p.seq = s.seq

-- name: DeleteWaiting
DELETE FROM outbox_waiting AS w USING unnest($1::bigint[]) AS s (seq) WHERE w.seq = s.seq

-- name: PendingToWaiting
-- From the row that is there: a settlement that is repeated finds none and changes nothing.
INSERT INTO outbox_waiting (seq, event_id, attempts, aggregate_digest)
SELECT p.seq, p.event_id, $3, e.aggregate_digest
  FROM unnest($1::smallint[], $2::bigint[]) AS s (lane, seq)
  JOIN outbox_pending AS p ON p.lane = s.lane AND p.seq = s.seq
 CROSS JOIN LATERAL (SELECT v.aggregate_digest FROM outbox_event AS v WHERE v.id = p.event_id OFFSET 0) AS e

-- name: WaitingAggregates
-- Digests are those of the rows, so that a row to which another program gave a wrong one is in one queue all the same.
SELECT DISTINCT w.aggregate_digest FROM unnest($1::bigint[]) AS s (seq) JOIN outbox_waiting AS w ON w.seq = s.seq

-- name: PendingAggregate
SELECT e.aggregate_digest, e.lane FROM outbox_pending AS p JOIN outbox_event AS e ON e.id = p.event_id WHERE p.lane = $1 AND p.seq = $2

-- name: WaitingAggregate
SELECT w.aggregate_digest, e.lane FROM outbox_waiting AS w JOIN outbox_event AS e ON e.id = w.event_id WHERE w.seq = $1

-- name: WaitingFailed
UPDATE outbox_waiting SET attempts = $1 WHERE seq = $2

-- name: BuryPending
INSERT INTO outbox_dead (event_id, seq, hold, attempts, died_at, aggregate_digest, place, error)
SELECT p.event_id, p.seq, $3, $4, $5, e.aggregate_digest, $6, $7
  FROM outbox_pending AS p JOIN outbox_event AS e ON e.id = p.event_id WHERE p.lane = $1 AND p.seq = $2

-- name: BuryWaiting
INSERT INTO outbox_dead (event_id, seq, hold, attempts, died_at, aggregate_digest, place, error)
SELECT event_id, seq, $2, $3, $4, aggregate_digest, $5, $6 FROM outbox_waiting WHERE seq = $1

-- name: BlockAggregate
INSERT INTO outbox_blocked AS b (aggregate_digest, lane, aggregate_type, aggregate_id, attempts, next_attempt_at, last_error, blocked_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (aggregate_digest) DO UPDATE SET attempts = excluded.attempts, next_attempt_at = excluded.next_attempt_at, last_error = excluded.last_error

-- name: HoldAggregate
INSERT INTO outbox_blocked AS b (aggregate_digest, lane, aggregate_type, aggregate_id, attempts, next_attempt_at, held, last_error, blocked_at)
VALUES ($1, $2, $3, $4, $5, $6, 1, $7, $8)
ON CONFLICT (aggregate_digest) DO UPDATE SET held = 1, attempts = excluded.attempts, last_error = excluded.last_error

-- name: BlockWaiting :once
-- An aggregate with waiting events is blocked, or they would be stranded.
INSERT INTO outbox_blocked (aggregate_digest, lane, aggregate_type, aggregate_id, next_attempt_at, blocked_at)
SELECT e.aggregate_digest, e.lane, e.aggregate_type, e.aggregate_id, $2, $2
  FROM unnest($1::bytea[]) AS a (digest)
 CROSS JOIN LATERAL (SELECT o.event_id FROM outbox_waiting AS o WHERE o.aggregate_digest = a.digest ORDER BY o.aggregate_digest, o.seq LIMIT 1) AS w
  JOIN outbox_event AS e ON e.id = w.event_id
 WHERE true ORDER BY e.aggregate_digest

-- name: UnblockEmpty
DELETE FROM outbox_blocked AS b
 WHERE b.aggregate_digest = ANY ($1::bytea[]) AND b.held = 0
   AND NOT EXISTS (SELECT 1 FROM outbox_waiting AS w WHERE w.aggregate_digest = b.aggregate_digest)

-- name: QueueGoesOn
-- A head that has not failed is due at once; one that has keeps its own time.
UPDATE outbox_blocked AS b SET next_attempt_at = $2, attempts = 0
 WHERE b.aggregate_digest = ANY ($1::bytea[]) AND b.held = 0
   AND (SELECT w.attempts FROM outbox_waiting AS w WHERE w.aggregate_digest = b.aggregate_digest ORDER BY w.aggregate_digest, w.seq LIMIT 1) = 0

-- name: Hasten
-- Those that are due later, lane by lane; only as many are looked at as it takes, and those that wait for something else. A row that
-- a settlement or an operator has locked is passed over: who waits for nobody is in no deadlock. MATERIALIZED: a subquery that a join
-- runs anew for each row of the table takes others each time, more than the limit.
-- starts_with and not left: of that the planner knows how many rows it holds for, so that it walks the index until it has enough.
WITH few AS MATERIALIZED (
       SELECT x.aggregate_digest FROM unnest($1::smallint[]) AS l (lane)
        CROSS JOIN LATERAL (
              SELECT o.aggregate_digest FROM outbox_blocked AS o
               WHERE o.lane = l.lane AND o.held = 0 AND o.next_attempt_at > $2 AND starts_with(o.last_error, $3::text)
               ORDER BY o.lane, o.held, o.next_attempt_at LIMIT $4::bigint FOR UPDATE SKIP LOCKED) AS x
        LIMIT $4::bigint)
UPDATE outbox_blocked AS b SET next_attempt_at = $2 FROM few WHERE b.aggregate_digest = few.aggregate_digest

-- Leases -------------------------------------------------------------------------------------------------------------

-- name: JoinRelays
INSERT INTO outbox_relay (owner, expires_at) VALUES ($1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $2::bigint)
ON CONFLICT (owner) DO UPDATE SET expires_at = excluded.expires_at

-- name: LiveRelays
SELECT count(*) FROM outbox_relay WHERE expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: ForgetRelays
-- One that somebody else forgets, or that joins again, at this moment is left to him.
WITH gone AS MATERIALIZED (
       SELECT owner FROM outbox_relay WHERE owner = $1 OR expires_at <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        ORDER BY owner FOR UPDATE SKIP LOCKED)
DELETE FROM outbox_relay AS r USING gone WHERE r.owner = gone.owner

-- name: RenewLanes
-- It also tells how many relays are alive: one statement less for each renewal of an idle relay.
WITH mine AS MATERIALIZED (
       SELECT l.lane FROM outbox_lane AS l JOIN unnest($1::smallint[], $2::bigint[]) AS h (lane, token) ON l.lane = h.lane AND l.token = h.token
        WHERE l.owner = $3 AND l.expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        ORDER BY l.lane FOR NO KEY UPDATE OF l)
UPDATE outbox_lane AS o SET expires_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $4::bigint FROM mine WHERE o.lane = mine.lane
RETURNING o.lane, (SELECT count(*) FROM outbox_relay AS r WHERE r.expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)

-- name: FreeLanes
WITH mine AS MATERIALIZED (
       SELECT l.lane FROM outbox_lane AS l JOIN unnest($1::smallint[], $2::bigint[]) AS h (lane, token) ON l.lane = h.lane AND l.token = h.token
        WHERE l.owner = $3 ORDER BY l.lane FOR NO KEY UPDATE OF l)
UPDATE outbox_lane AS o SET owner = '', expires_at = 0 FROM mine WHERE o.lane = mine.lane

-- name: TakeLanes
-- Also those of the owner's own that are not among $4, the lanes it has: the answer that told of them was lost. A lane
-- whose row is locked is in somebody's hands at this moment: it is passed over, not waited for.
WITH free AS MATERIALIZED (
       SELECT lane FROM outbox_lane
        WHERE owner = '' OR expires_at <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint OR owner = $1 AND NOT lane = ANY ($4::smallint[])
        ORDER BY lane LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED)
UPDATE outbox_lane AS o SET owner = $1, token = o.token + 1, expires_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $2::bigint
  FROM free WHERE o.lane = free.lane
RETURNING o.lane, o.token

-- Inbox --------------------------------------------------------------------------------------------------------------

-- name: InsertMark :once
-- A mark of the same key that another open transaction has made is waited for.
INSERT INTO inbox_mark (consumer, key_digest, payload_digest, marked_at) VALUES ($1, $2, $3, $4)

-- name: FindMark
SELECT payload_digest FROM inbox_mark WHERE consumer = $1 AND key_digest = $2

-- name: DeleteMark
-- Only the mark of this payload: one that another payload has under the same key stays.
DELETE FROM inbox_mark WHERE consumer = $1 AND key_digest = $2 AND payload_digest = $3

-- name: RaiseVersion
-- Affects no row when the version is not above the last one. The row stays locked: versions of one aggregate take turns.
INSERT INTO inbox_version AS v (consumer, aggregate_digest, version) VALUES ($1, $2, $3)
ON CONFLICT (consumer, aggregate_digest) DO UPDATE SET version = excluded.version WHERE excluded.version > v.version

-- name: NoteBegun
-- Two processes that note at once take turns at the row.
INSERT INTO inbox_begun AS b (consumer, part, key_digest, times, begun_at) VALUES ($1, $2, $3, 1, $4)
ON CONFLICT (consumer, part) DO UPDATE
   SET times = CASE WHEN b.key_digest = excluded.key_digest THEN b.times + 1 ELSE 1 END, key_digest = excluded.key_digest, begun_at = excluded.begun_at

-- name: CountBegun
SELECT times FROM inbox_begun WHERE consumer = $1 AND part = $2

-- name: RegisterType
-- Clocks of instances differ: the later time stays. Types are registered in order, so that two instances do not wait for each other.
INSERT INTO inbox_type AS t (consumer, type, seen_at) VALUES ($1, $2, $3)
ON CONFLICT (consumer, type) DO UPDATE SET seen_at = greatest(t.seen_at, excluded.seen_at)

-- name: RegisteredTypes
SELECT type FROM inbox_type WHERE consumer = $1 AND seen_at >= $2 ORDER BY type

-- name: BlockedOf
-- Until the transaction ends nobody else drains these queues or appends to them.
SELECT b.aggregate_digest FROM inbox_blocked AS b WHERE b.consumer = $1 AND b.aggregate_digest = ANY ($2::bytea[])
 ORDER BY b.aggregate_digest FOR UPDATE

-- name: EnqueueMessage :once
INSERT INTO inbox_waiting (consumer, key_digest, aggregate_digest, attempts, last_error, enqueued_at, created_at, aggregate_version,
                           max_attempts, topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload, payload_digest, position)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, nextval('inbox_waiting_position'))

-- name: EnqueueHead :once
-- The head of a queue is ahead of all that wait in it.
INSERT INTO inbox_waiting (consumer, key_digest, aggregate_digest, attempts, last_error, enqueued_at, created_at, aggregate_version,
                           max_attempts, topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload, payload_digest, position)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
        coalesce((SELECT min(w.position) - 1 FROM inbox_waiting AS w WHERE w.consumer = $1 AND w.aggregate_digest = $3), nextval('inbox_waiting_position')))

-- name: MessageFailed
UPDATE inbox_waiting SET attempts = $1, last_error = $2 WHERE consumer = $3 AND key_digest = $4 AND aggregate_digest = $5 AND payload_digest = $6

-- name: FindPosition
SELECT position FROM inbox_waiting WHERE consumer = $1 AND key_digest = $2 AND aggregate_digest = $3 AND payload_digest = $4

-- name: HeadPosition
-- Where a message that was in no queue belongs: ahead of the queue; when there is none, ahead of every position to come.
SELECT coalesce((SELECT min(position) - 1 FROM inbox_waiting WHERE consumer = $1 AND aggregate_digest = $2), nextval('inbox_waiting_position'))

-- name: DeleteMessage
DELETE FROM inbox_waiting WHERE consumer = $1 AND key_digest = $2 AND aggregate_digest = $3 AND payload_digest = $4

-- name: BlockConsumer
INSERT INTO inbox_blocked (consumer, aggregate_digest, aggregate_type, aggregate_id, next_attempt_at, blocked_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (consumer, aggregate_digest) DO UPDATE SET next_attempt_at = excluded.next_attempt_at

-- name: HoldConsumer
INSERT INTO inbox_blocked (consumer, aggregate_digest, aggregate_type, aggregate_id, next_attempt_at, held, blocked_at) VALUES ($1, $2, $3, $4, $5, 1, $6)
ON CONFLICT (consumer, aggregate_digest) DO UPDATE SET held = 1

-- name: BlockConsumerOnce
-- The row is locked also when it is there already. Whoever appends, and whoever finds the queue empty and removes the row,
-- take turns here, and the next statement sees what the other one did: no message is left in a queue that nobody looks at.
INSERT INTO inbox_blocked AS b (consumer, aggregate_digest, aggregate_type, aggregate_id, next_attempt_at, blocked_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (consumer, aggregate_digest) DO UPDATE SET held = b.held

-- name: UnblockConsumer
DELETE FROM inbox_blocked AS b
 WHERE b.consumer = $1 AND b.aggregate_digest = $2 AND b.held = 0
   AND NOT EXISTS (SELECT 1 FROM inbox_waiting AS w WHERE w.consumer = $1 AND w.aggregate_digest = $2)

-- name: ConsumerGoesOn
UPDATE inbox_blocked SET next_attempt_at = $3
 WHERE consumer = $1 AND aggregate_digest = $2 AND held = 0
   AND (SELECT w.attempts FROM inbox_waiting AS w WHERE w.consumer = $1 AND w.aggregate_digest = $2 ORDER BY w.position, w.id LIMIT 1) = 0

-- name: DueQueues
SELECT aggregate_type, aggregate_id, next_attempt_at FROM inbox_blocked
 WHERE consumer = $1 AND held = 0 ORDER BY next_attempt_at LIMIT $2

-- name: LockQueue
-- Waits for a transaction that has the queue; the next statement sees what that one left. No row: the queue is gone, held or
-- not due.
SELECT b.next_attempt_at FROM inbox_blocked AS b
 WHERE b.consumer = $1 AND b.aggregate_digest = $2 AND b.held = 0 AND b.next_attempt_at <= $3 FOR UPDATE

-- name: ReadQueue
SELECT position, attempts, last_error, created_at, 0::bigint, aggregate_version, max_attempts, topic, type, aggregate_type, aggregate_id,
       message_id, event_key, headers, payload
  FROM inbox_waiting WHERE consumer = $1 AND aggregate_digest = $2 ORDER BY position, id LIMIT $3

-- name: InsertDeadLetter
INSERT INTO inbox_dead (id, consumer, hold, key_digest, aggregate_digest, position, attempts, died_at, place, error, created_at,
                        aggregate_version, max_attempts, topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)

-- Outgoing calls -----------------------------------------------------------------------------------------------------

-- name: AddCall :once
-- The order of a group is the order of commits: the lock on the group's name, which is the transaction's, is waited for before
-- the call gets its number. So once a call is there none can come before it, and a claim needs the lock of the call's own row
-- alone.
INSERT INTO outside_call (kind, call_key, key_digest, call_group, next_at, created_at, updated_at, payload)
SELECT $1, $2, $3, $4, $5, $6, $7, $8
  FROM (SELECT CASE WHEN $4 <> '' THEN pg_advisory_xact_lock(hashtextextended($4, 'outside_call'::regclass::oid::bigint)) END OFFSET 0) AS turn
 WHERE true

-- name: NextCall
-- The next time that anything can be claimed: when the first waiting call that is the oldest of its group is due, by the
-- caller's clock, and in how long the first lease expires, by the database's.
SELECT (SELECT c.next_at FROM outside_call AS c
         WHERE c.state = 0 AND c.kind = ANY ($1::text[])
           AND (c.call_group = '' OR NOT EXISTS (
                SELECT 1 FROM outside_call AS o WHERE o.call_group = c.call_group AND o.call_group <> '' AND o.state < 2 AND o.id < c.id))
         ORDER BY c.next_at LIMIT 1),
       (SELECT c.lease_until - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM outside_call AS c
         WHERE c.state = 1 AND c.kind = ANY ($1::text[]) ORDER BY c.lease_until LIMIT 1)

-- name: ClaimExpiredCalls
-- A started call is the only one of its group already. Its owner died or is too slow: it may have reached the other side. One
-- that is just being finished is locked, and left alone. MATERIALIZED as in Hasten: who asks for a number of calls has no more workers.
WITH x AS MATERIALIZED (
       SELECT c.id FROM outside_call AS c
        WHERE c.state = 1 AND c.lease_until <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AND c.kind = ANY ($1::text[])
        ORDER BY c.lease_until LIMIT $3 FOR UPDATE SKIP LOCKED)
UPDATE outside_call AS t
   SET token = t.token + 1, lease_until = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $2::bigint, attempts = t.attempts + 1, ambiguous = 1,
       updated_at = $4
  FROM x WHERE t.id = x.id
RETURNING t.kind, t.call_key, t.call_group, t.token, t.attempts, t.ambiguous, t.payload

-- name: ClaimWaitingCalls
WITH x AS MATERIALIZED (
       SELECT c.id FROM outside_call AS c
        WHERE c.state = 0 AND c.next_at <= $4 AND c.kind = ANY ($1::text[])
          AND (c.call_group = '' OR NOT EXISTS (
               SELECT 1 FROM outside_call AS o WHERE o.call_group = c.call_group AND o.call_group <> '' AND o.state < 2 AND o.id < c.id))
        ORDER BY c.next_at LIMIT $3 FOR UPDATE SKIP LOCKED)
UPDATE outside_call AS t
   SET state = 1, token = t.token + 1, lease_until = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $2::bigint, updated_at = $4
  FROM x WHERE t.id = x.id
RETURNING t.kind, t.call_key, t.call_group, t.token, t.attempts, t.ambiguous, t.payload

-- name: FinishCall
UPDATE outside_call
   SET state = $3, attempts = attempts + $4, ambiguous = $5, next_at = $6, lease_until = 0, error = $7, result = $8, updated_at = $9
 WHERE key_digest = $1 AND state = 1 AND token = $2

-- Requests -----------------------------------------------------------------------------------------------------------

-- name: FindRequest
SELECT fingerprint, status, created_at, header, body FROM idempotency_record WHERE scope = $1 AND key_digest = $2

-- name: RecordRequest :once
INSERT INTO idempotency_record (scope, key_digest, request_key, fingerprint, status, created_at, header, body) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)

-- Operators ----------------------------------------------------------------------------------------------------------

-- name: DeadEvents
-- What is larger than an event's may be is not read.
SELECT d.event_id, d.attempts, d.error, d.place, d.died_at, d.hold,
       octet_length(e.payload), e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts,
       CASE WHEN octet_length(e.topic) <= 100 THEN e.topic ELSE '' END, CASE WHEN octet_length(e.type) <= 100 THEN e.type ELSE '' END,
       CASE WHEN octet_length(e.aggregate_type) <= 100 THEN e.aggregate_type ELSE '' END, CASE WHEN octet_length(e.aggregate_id) <= 255 THEN e.aggregate_id ELSE '' END,
       CASE WHEN octet_length(e.message_id) <= 255 THEN e.message_id ELSE '' END, CASE WHEN octet_length(e.event_key) <= 255 THEN e.event_key ELSE '' END,
       CASE WHEN octet_length(e.headers) <= 131072 THEN e.headers ELSE '{}' END, CASE WHEN octet_length(e.payload) <= 524288 THEN e.payload ELSE ''::bytea END
  FROM outbox_dead AS d JOIN outbox_event AS e ON e.id = d.event_id
 WHERE d.event_id > $1 ORDER BY d.event_id LIMIT $2

-- name: LockDeadsLane
-- An operator and the relay that settles the aggregate's events take turns on the lane's row.
SELECT l.lane FROM outbox_lane AS l
 WHERE l.lane = (SELECT e.lane FROM outbox_dead AS d JOIN outbox_event AS e ON e.id = d.event_id WHERE d.event_id = $1) FOR NO KEY UPDATE

-- name: FindDeadEvent
SELECT d.aggregate_digest, (SELECT SUBSTR(e.event_key, 1, 255) FROM outbox_event AS e WHERE e.id = d.event_id),
       (SELECT o.event_id FROM outbox_dead AS o WHERE o.aggregate_digest = d.aggregate_digest AND o.seq < d.seq ORDER BY o.event_id LIMIT 1)
  FROM outbox_dead AS d WHERE d.event_id = $1

-- name: RequeueDead
-- seq is the one that it had: ahead of everything that came after it, behind what came before.
INSERT INTO outbox_waiting (seq, event_id, attempts, aggregate_digest)
SELECT seq, event_id, 0, aggregate_digest FROM outbox_dead WHERE event_id = $1

-- name: RecordDiscarded
INSERT INTO outbox_discarded (event_id, attempts, died_at, place, error, discarded_at, discarded_by, reason)
SELECT event_id, attempts, died_at, place, error, $2, $3, $4 FROM outbox_dead WHERE event_id = $1

-- name: DeleteDead
DELETE FROM outbox_dead WHERE event_id = $1

-- name: ReleaseAggregate
UPDATE outbox_blocked SET held = 0
 WHERE aggregate_digest = $1 AND NOT EXISTS (SELECT 1 FROM outbox_dead WHERE aggregate_digest = $1 AND hold = 1)

-- name: EventsBelow
-- A window of the newest rows first: narrow columns, by primary key.
SELECT id, created_at FROM outbox_event WHERE id < $1 ORDER BY id DESC LIMIT $2

-- name: LockReplays
-- Two replays at once would make an event pending twice. The transaction gets its number here, before it draws a seq: see
-- floor.go.
SELECT pg_advisory_xact_lock((1129269859::bigint << 32) | 'outbox_event'::regclass::oid::bigint), txid_current()

-- name: ReplayEvents
-- The events are locked against PurgeEvents. What is unfinished in the one snapshot of this statement is not touched; what
-- a relay or an operator moves from one table to another at this moment is in one of them.
WITH old AS MATERIALIZED (
       SELECT e.id, e.lane FROM outbox_event AS e
        WHERE e.id BETWEEN $1 AND $2 AND e.created_at >= $3
          AND NOT EXISTS (SELECT 1 FROM outbox_delayed AS d WHERE d.event_id = e.id)
          AND NOT EXISTS (SELECT 1 FROM outbox_dead AS d WHERE d.event_id = e.id)
          AND NOT EXISTS (SELECT 1 FROM outbox_discarded AS d WHERE d.event_id = e.id)
          AND NOT EXISTS (SELECT 1 FROM outbox_pending AS p WHERE p.event_id = e.id)
          AND NOT EXISTS (SELECT 1 FROM outbox_waiting AS w WHERE w.event_id = e.id)
        ORDER BY e.id FOR KEY SHARE OF e)
INSERT INTO outbox_pending (lane, event_id) SELECT old.lane, old.id FROM old ORDER BY old.id

-- name: DueSince
-- Written before, but their time came since: they were sent since.
SELECT id FROM outbox_event WHERE deliver_at > 0 AND deliver_at >= $1 AND created_at < $1 ORDER BY id

-- name: ReplayDelayed
-- By id: what was made pending a moment ago may be sent by now, and must not be found again.
WITH old AS MATERIALIZED (
       SELECT e.id, e.lane FROM outbox_event AS e
        WHERE e.id = ANY ($1::bigint[])
          AND NOT EXISTS (SELECT 1 FROM outbox_delayed AS d WHERE d.event_id = e.id)
          AND NOT EXISTS (SELECT 1 FROM outbox_dead AS d WHERE d.event_id = e.id)
          AND NOT EXISTS (SELECT 1 FROM outbox_discarded AS d WHERE d.event_id = e.id)
          AND NOT EXISTS (SELECT 1 FROM outbox_pending AS p WHERE p.event_id = e.id)
          AND NOT EXISTS (SELECT 1 FROM outbox_waiting AS w WHERE w.event_id = e.id)
        ORDER BY e.id FOR KEY SHARE OF e)
INSERT INTO outbox_pending (lane, event_id) SELECT old.lane, old.id FROM old ORDER BY old.id

-- name: RecordAct
INSERT INTO machine_transition (machine, entity_id, move, from_state, to_state, cause, cause_key, actor, version, at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0, $9)

-- name: Acts
-- By the name of the machine, of which there are few, and not by id through the history of everything else.
SELECT id, machine, entity_id, move, cause, cause_key, actor, at
  FROM machine_transition WHERE machine IN ('ops.event', 'ops.letter', 'ops.sent') AND id + 0 > $1 ORDER BY id + 0 LIMIT $2

-- name: DeadLetters
SELECT d.id, d.consumer, d.attempts, d.error, d.place, d.died_at, d.hold, d.state, d.closed_at, d.closed_by, d.reason,
       d.created_at, 0::bigint, d.aggregate_version, d.max_attempts, d.topic, d.type, d.aggregate_type, d.aggregate_id,
       d.message_id, d.event_key, d.headers, d.payload
  FROM inbox_dead AS d
 WHERE d.state = 'OPEN' AND d.seq > coalesce((SELECT a.seq FROM inbox_dead AS a WHERE a.id = $2), 0) AND ($1 = '' OR d.consumer = $1)
 ORDER BY d.seq LIMIT $3

-- name: LockLettersQueue
-- An operator takes turns with the consumer that drains the letter's queue, and with other operators.
SELECT b.aggregate_digest FROM inbox_blocked AS b
 WHERE (b.consumer, b.aggregate_digest) = (SELECT d.consumer, d.aggregate_digest FROM inbox_dead AS d WHERE d.id = $1 AND d.state = 'OPEN') FOR UPDATE

-- name: FindLetter
SELECT d.consumer, d.event_key, d.key_digest, d.aggregate_digest, d.aggregate_type, d.aggregate_id, d.payload,
       (SELECT min(o.id) FROM inbox_dead AS o
         WHERE o.state = 'OPEN' AND o.consumer = d.consumer AND o.aggregate_digest = d.aggregate_digest AND o.aggregate_id <> ''
           AND (o.position < d.position OR o.position = d.position AND o.seq < d.seq))
  FROM inbox_dead AS d WHERE d.id = $1 AND d.state = 'OPEN' FOR UPDATE OF d

-- name: RequeueLetter :once
INSERT INTO inbox_waiting (consumer, key_digest, aggregate_digest, position, enqueued_at, created_at, aggregate_version, max_attempts,
                           topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload, payload_digest)
SELECT consumer, key_digest, aggregate_digest, position, $2, created_at, aggregate_version, max_attempts,
       topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload, $3
  FROM inbox_dead WHERE id = $1

-- name: CloseLetter
UPDATE inbox_dead SET state = $2, closed_at = $3, closed_by = $4, reason = $5 WHERE id = $1

-- name: ReleaseConsumer
UPDATE inbox_blocked SET held = 0
 WHERE consumer = $1 AND aggregate_digest = $2
   AND NOT EXISTS (SELECT 1 FROM inbox_dead WHERE state = 'OPEN' AND consumer = $1 AND aggregate_digest = $2 AND hold = 1)

-- name: CountBacklog
-- One row a queue: how many, and since when. The event with the lowest id or position stands for the oldest.
SELECT 1, count(*), coalesce((SELECT created_at FROM outbox_event WHERE id = (SELECT event_id FROM outbox_pending ORDER BY seq LIMIT 1)), 0)
  FROM outbox_pending
UNION ALL SELECT 2, count(*), coalesce(min(deliver_at), 0) FROM outbox_delayed WHERE deliver_at <= $1
UNION ALL SELECT 3, count(*), coalesce((SELECT created_at FROM outbox_event WHERE id = (
                              SELECT min(event_id) FROM outbox_delayed WHERE deliver_at > $1)), 0) FROM outbox_delayed WHERE deliver_at > $1
UNION ALL SELECT 4, count(*), coalesce((SELECT created_at FROM outbox_event WHERE id = (SELECT min(event_id) FROM outbox_waiting)), 0) FROM outbox_waiting
UNION ALL SELECT 5, count(*), coalesce(min(died_at), 0) FROM outbox_dead
UNION ALL SELECT 6, count(*), coalesce(min(enqueued_at), 0) FROM inbox_waiting
UNION ALL SELECT 7, count(*), coalesce(min(died_at), 0) FROM inbox_dead WHERE state = 'OPEN'
UNION ALL SELECT 8, count(*), coalesce(min(created_at), 0) FROM outside_call WHERE state IN (0, 1)
UNION ALL SELECT 9, count(*), coalesce(min(updated_at), 0) FROM outside_call WHERE state >= 2 AND state = 3
ORDER BY 1

-- Operators ask whether times can be meant ----------------------------------------------------------------------------

-- name: ByIndexOnly
-- For the rest of the transaction: OddTimes reads its few rows in an index's order whatever the statistics say of their number, and no
-- longer than five seconds.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
       set_config('statement_timeout', '5000', true)

-- name: TimesBefore
-- Delayed events whose time is before one; whether they wait still. Counted: for an EXISTS the planner may read all delayed events first.
SELECT e.id, e.deliver_at, (SELECT count(*) FROM outbox_delayed AS d WHERE d.event_id = e.id) > 0 FROM outbox_event AS e
 WHERE e.deliver_at > 0 AND e.deliver_at < $1 ORDER BY e.deliver_at LIMIT $2

-- name: TimesAfter
-- From the far end: what never comes is found, however many wait for years.
SELECT e.id, e.deliver_at, (SELECT count(*) FROM outbox_delayed AS d WHERE d.event_id = e.id) > 0 FROM outbox_event AS e
 WHERE e.deliver_at > 0 AND e.deliver_at > $1 ORDER BY e.deliver_at DESC LIMIT $2

-- name: StartOfKey
SELECT substr(event_key, 1, 255) FROM outbox_event WHERE id = $1

-- Retention ----------------------------------------------------------------------------------------------------------

-- name: EventsAbove
SELECT id, created_at FROM outbox_event WHERE id > $1 ORDER BY id LIMIT $2

-- name: SentAmong
-- Of a list of events those with no row that says they are unfinished.
SELECT j.id FROM unnest($1::bigint[]) AS j (id)
 WHERE NOT EXISTS (SELECT 1 FROM outbox_delayed AS d WHERE d.event_id = j.id)
   AND NOT EXISTS (SELECT 1 FROM outbox_dead AS d WHERE d.event_id = j.id)
   AND NOT EXISTS (SELECT 1 FROM outbox_pending AS p WHERE p.event_id = j.id)
   AND NOT EXISTS (SELECT 1 FROM outbox_waiting AS w WHERE w.event_id = j.id)
 ORDER BY j.id

-- name: LockEvents
-- Cleaners that work at the same time, and a replay, do not wait for each other: what one holds the other passes over.
SELECT id FROM outbox_event WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE SKIP LOCKED

-- name: PurgeEvents
-- What SentAmong found may have been made pending since, by a replay; by now it has committed, or it cannot lock the event.
DELETE FROM outbox_event AS e
 WHERE e.id = ANY ($1::bigint[])
   AND NOT EXISTS (SELECT 1 FROM outbox_pending AS p WHERE p.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM outbox_waiting AS w WHERE w.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM outbox_dead AS d WHERE d.event_id = e.id)

-- name: PurgeDiscarded
DELETE FROM outbox_discarded AS d WHERE d.event_id = ANY ($1::bigint[])
   AND NOT EXISTS (SELECT 1 FROM outbox_event AS e WHERE e.id = d.event_id)

-- name: PurgeMarks
-- The oldest have the lowest ids, nearly: a window of ids is looked at, larger than what clocks shuffle. The mark of an open
-- dead letter stays, and is passed over before the window is measured, so that many of them do not fill it: without its mark
-- a copy of the message would be applied, and the redriven letter once more.
WITH old AS MATERIALIZED (
       SELECT m.id FROM inbox_mark AS m
        WHERE m.id IN (SELECT w.id FROM (SELECT v.id, v.marked_at FROM inbox_mark AS v
                                          WHERE NOT EXISTS (SELECT 1 FROM inbox_dead AS d
                                                 WHERE d.state = 'OPEN' AND d.consumer = v.consumer AND d.key_digest = v.key_digest)
                                          ORDER BY v.id LIMIT greatest($2::bigint, 1000)) AS w
                        WHERE w.marked_at < $1 ORDER BY w.id LIMIT $2::bigint)
        ORDER BY m.id FOR UPDATE SKIP LOCKED)
DELETE FROM inbox_mark AS m USING old WHERE m.id = old.id

-- name: PurgeRequests
WITH old AS MATERIALIZED (
       SELECT r.id FROM idempotency_record AS r
        WHERE r.id IN (SELECT w.id FROM (SELECT v.id, v.created_at FROM idempotency_record AS v ORDER BY v.id LIMIT greatest($2::bigint, 1000)) AS w
                        WHERE w.created_at < $1 ORDER BY w.id LIMIT $2::bigint)
        ORDER BY r.id FOR UPDATE SKIP LOCKED)
DELETE FROM idempotency_record AS r USING old WHERE r.id = old.id

-- name: PurgeCalls
WITH old AS MATERIALIZED (
       SELECT c.id FROM outside_call AS c WHERE c.state >= 2 AND c.state = $3 AND c.updated_at < $1
        ORDER BY c.updated_at LIMIT $2 FOR UPDATE SKIP LOCKED)
DELETE FROM outside_call AS c USING old WHERE c.id = old.id

-- name: BreakLanes
-- Ends every lease at once; tokens stay, so that what a former owner still tries is refused.
WITH held AS MATERIALIZED (SELECT lane FROM outbox_lane WHERE owner <> '' ORDER BY lane FOR NO KEY UPDATE)
UPDATE outbox_lane AS o SET owner = '', expires_at = 0 FROM held WHERE o.lane = held.lane

-- name: ForgetAllRelays
DELETE FROM outbox_relay

-- name: BreakCalls
UPDATE outside_call SET lease_until = 0 WHERE state = 1

-- Settings -----------------------------------------------------------------------------------------------------------

-- name: Settings
SELECT current_setting('server_version_num')::integer, current_setting('fsync'), current_setting('full_page_writes'),
       current_setting('synchronous_commit'), current_setting('default_transaction_isolation')
