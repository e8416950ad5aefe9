-- Statements of the SQLite store. Every write runs in the store's one write transaction (BEGIN IMMEDIATE), so no statement
-- needs a lock of its own; readers see a snapshot. Lists are JSON arrays: one statement for a batch of any size. The
-- database's clock is unixepoch('subsec'), to the millisecond, in microseconds. LIMIT ? + 0: of a bare parameter SQLite looks at
-- the value to plan by it, and prepares the statement anew at each run.

-- Outbox -------------------------------------------------------------------------------------------------------------

-- name: InsertEvent :once
-- The trigger makes it pending or delayed. Only a key that is there already is skipped; a broken CHECK is an error.
INSERT INTO outbox_event (created_at, deliver_at, lane, aggregate_version, max_attempts, key_digest, aggregate_digest,
                          topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: NextDue
-- Leased lanes are the bits of ?1. The lanes that have rows are found by stepping through the index from one to the next,
-- so that an idle relay touches next to nothing; then one probe a lane: the next delayed event after ?2, the next retry. And
-- whether anything is pending there at all, which spares an idle relay the second statement. The last is whether any of the 64
-- lanes has no owner; one that was given back ended at 0.
WITH RECURSIVE
    pending (lane) AS (SELECT MIN(lane) FROM outbox_pending
                       UNION ALL SELECT (SELECT MIN(p.lane) FROM outbox_pending AS p WHERE p.lane > pending.lane) FROM pending WHERE pending.lane IS NOT NULL),
    delayed (lane) AS (SELECT MIN(lane) FROM outbox_delayed
                       UNION ALL SELECT (SELECT MIN(d.lane) FROM outbox_delayed AS d WHERE d.lane > delayed.lane) FROM delayed WHERE delayed.lane IS NOT NULL),
    blocked (lane) AS (SELECT MIN(lane) FROM outbox_blocked
                       UNION ALL SELECT (SELECT MIN(b.lane) FROM outbox_blocked AS b WHERE b.lane > blocked.lane) FROM blocked WHERE blocked.lane IS NOT NULL)
SELECT (SELECT MIN((SELECT d.deliver_at FROM outbox_delayed AS d WHERE d.lane = delayed.lane AND d.deliver_at > ?2
                    ORDER BY d.deliver_at LIMIT 1)) FROM delayed WHERE (?1 >> delayed.lane) & 1),
       (SELECT MIN((SELECT b.next_attempt_at FROM outbox_blocked AS b WHERE b.lane = blocked.lane AND b.held = 0 AND b.next_attempt_at > ?2
                    ORDER BY b.next_attempt_at LIMIT 1)) FROM blocked WHERE (?1 >> blocked.lane) & 1),
       EXISTS (SELECT 1 FROM pending WHERE (?1 >> pending.lane) & 1),
       EXISTS (SELECT 1 FROM outbox_lane WHERE expires_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER))

-- name: ClaimLanes
-- Leased lanes are the bits of ?1. The first ?2 rows of each lane by index. stop is the row that is one too many; finding
-- it touches the index only. MATERIALIZED: computed once a lane, not once a row. Column 2 is flags: 1, the lane has more;
-- 2, the event's aggregate is blocked, which is asked for each event only when any aggregate is (that is found out once);
-- the rest is the lane.
-- The texts come as one, because each column costs the driver several calls; no valid text has the separator in it. Of a row
-- that is larger than 16384 bytes comes the event's id in their place. The length of a column is in the head of its row.
WITH RECURSIVE
    pending (lane) AS (SELECT MIN(lane) FROM outbox_pending
                       UNION ALL SELECT (SELECT MIN(p.lane) FROM outbox_pending AS p WHERE p.lane > pending.lane) FROM pending WHERE pending.lane IS NOT NULL),
    bound (lane, stop) AS MATERIALIZED (
       SELECT pending.lane, (SELECT s.seq FROM outbox_pending AS s WHERE s.lane = pending.lane ORDER BY s.seq LIMIT 1 OFFSET ?2)
         FROM pending WHERE (?1 >> pending.lane) & 1)
SELECT p.seq,
       4 * bound.lane + (bound.stop IS NOT NULL) + CASE WHEN EXISTS (SELECT 1 FROM outbox_blocked AS b WHERE b.lane >= 0)
            THEN 2 * EXISTS (SELECT 1 FROM outbox_blocked AS b WHERE b.aggregate_digest = ifnull(e.aggregate_digest,
                 (SELECT v.aggregate_digest FROM outbox_event AS v WHERE v.id = p.event_id))) ELSE 0 END,
       e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts, e.payload,
       CASE WHEN e.id IS NULL THEN p.event_id ELSE
            concat_ws(char(31), e.topic, e.type, e.aggregate_type, e.aggregate_id, e.message_id, e.event_key, e.headers) END
  FROM bound
 CROSS JOIN outbox_pending AS p ON p.lane = bound.lane AND p.seq < ifnull(bound.stop, 9223372036854775807)
  LEFT JOIN outbox_event AS e ON e.id = p.event_id AND octet_length(e.payload) <= 16384
       AND octet_length(e.headers) + octet_length(e.topic) + octet_length(e.type) + octet_length(e.aggregate_type) + octet_length(e.aggregate_id)
           + octet_length(e.message_id) + octet_length(e.event_key) <= 16384

-- name: ClaimOne
SELECT e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts, e.topic, e.type, e.aggregate_type, e.aggregate_id,
       e.message_id, e.event_key, e.headers, e.payload
  FROM outbox_pending AS p CROSS JOIN outbox_event AS e ON e.id = p.event_id
 WHERE p.seq = ?

-- name: DueLanes
SELECT l.lane FROM outbox_lane AS l
 WHERE (?1 >> l.lane) & 1
   AND EXISTS (SELECT 1 FROM outbox_blocked AS b WHERE b.lane = l.lane AND b.held = 0 AND b.next_attempt_at <= ?2)

-- name: DueAggregates
SELECT aggregate_digest FROM outbox_blocked WHERE lane = ? AND held = 0 AND next_attempt_at <= ? ORDER BY next_attempt_at LIMIT ? + 0

-- name: ClaimQueue
-- Of an event that is larger than 16384 bytes only the id.
SELECT w.seq, w.attempts, w.event_id, e.id,
       e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts, e.topic, e.type, e.aggregate_type, e.aggregate_id,
       e.message_id, e.event_key, e.headers, e.payload
  FROM outbox_waiting AS w
  LEFT JOIN outbox_event AS e ON e.id = w.event_id AND octet_length(e.payload) <= 16384
       AND octet_length(e.headers) + octet_length(e.topic) + octet_length(e.type) + octet_length(e.aggregate_type) + octet_length(e.aggregate_id)
           + octet_length(e.message_id) + octet_length(e.event_key) <= 16384
 WHERE w.aggregate_digest = ? ORDER BY w.seq LIMIT ? + 0

-- name: EventSizes
-- What is known of large events without reading what is large. The last eight are sizes.
SELECT e.id, e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts,
       CASE WHEN octet_length(e.topic) <= 100 THEN e.topic END, CASE WHEN octet_length(e.type) <= 100 THEN e.type END,
       CASE WHEN octet_length(e.aggregate_type) <= 100 THEN e.aggregate_type END, CASE WHEN octet_length(e.aggregate_id) <= 255 THEN e.aggregate_id END,
       CASE WHEN octet_length(e.message_id) <= 255 THEN e.message_id END, CASE WHEN octet_length(e.event_key) <= 255 THEN e.event_key END,
       '', NULL,
       octet_length(e.topic), octet_length(e.type), octet_length(e.aggregate_type), octet_length(e.aggregate_id),
       octet_length(e.message_id), octet_length(e.event_key), octet_length(e.headers), octet_length(e.payload)
  FROM json_each(?) AS j CROSS JOIN outbox_event AS e ON e.id = j.value

-- name: LargeEvents
SELECT e.id, e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts, e.topic, e.type, e.aggregate_type, e.aggregate_id,
       e.message_id, e.event_key, e.headers, e.payload
  FROM json_each(?) AS j CROSS JOIN outbox_event AS e ON e.id = j.value

-- name: DueDelayed
-- In the order in which they join their lane.
SELECT d.event_id FROM outbox_lane AS l
 CROSS JOIN outbox_delayed AS d ON d.lane = l.lane AND d.deliver_at <= ?2
 WHERE (?1 >> l.lane) & 1
 LIMIT ?3 + 0

-- name: PromoteDelayed
INSERT INTO outbox_pending (lane, event_id)
SELECT d.lane, d.event_id FROM json_each(?1) AS j CROSS JOIN outbox_delayed AS d ON d.event_id = j.value

-- name: DeleteDelayed
DELETE FROM outbox_delayed WHERE event_id IN (SELECT value FROM json_each(?))

-- name: LeasesStand
-- Read inside the settling transaction: nobody can take a lane over before it commits.
SELECT lane, token FROM outbox_lane
 WHERE (?1 >> lane) & 1 AND owner <> '' AND expires_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER)

-- name: DeletePending
DELETE FROM outbox_pending WHERE seq IN (SELECT value FROM json_each(?))

-- name: DeleteWaiting
DELETE FROM outbox_waiting WHERE seq IN (SELECT value FROM json_each(?))

-- name: PendingToWaiting
-- From the row that is there: a settlement that is repeated finds none and changes nothing.
INSERT INTO outbox_waiting (seq, event_id, attempts, aggregate_digest)
SELECT p.seq, p.event_id, ?2, e.aggregate_digest
  FROM json_each(?1) AS j
 CROSS JOIN outbox_pending AS p ON p.seq = j.value
 CROSS JOIN outbox_event AS e ON e.id = p.event_id

-- name: WaitingAggregates
-- Digests are those of the rows, so that a row to which another program gave a wrong one is in one queue all the same.
SELECT aggregate_digest FROM outbox_waiting WHERE seq IN (SELECT value FROM json_each(?))

-- name: PendingAggregate
SELECT e.aggregate_digest, e.lane FROM outbox_pending AS p CROSS JOIN outbox_event AS e ON e.id = p.event_id WHERE p.seq = ?

-- name: WaitingAggregate
SELECT w.aggregate_digest, e.lane FROM outbox_waiting AS w CROSS JOIN outbox_event AS e ON e.id = w.event_id WHERE w.seq = ?

-- name: WaitingFailed
UPDATE outbox_waiting SET attempts = ? WHERE seq = ?

-- name: BuryPending
INSERT INTO outbox_dead (event_id, seq, hold, attempts, died_at, aggregate_digest, place, error)
SELECT p.event_id, p.seq, ?2, ?3, ?4, e.aggregate_digest, ?5, ?6
  FROM outbox_pending AS p CROSS JOIN outbox_event AS e ON e.id = p.event_id WHERE p.seq = ?1

-- name: BuryWaiting
INSERT INTO outbox_dead (event_id, seq, hold, attempts, died_at, aggregate_digest, place, error)
SELECT event_id, seq, ?2, ?3, ?4, aggregate_digest, ?5, ?6 FROM outbox_waiting WHERE seq = ?1

-- name: BlockAggregate
INSERT INTO outbox_blocked (aggregate_digest, lane, aggregate_type, aggregate_id, attempts, next_attempt_at, last_error, blocked_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (aggregate_digest) DO UPDATE SET attempts = excluded.attempts, next_attempt_at = excluded.next_attempt_at, last_error = excluded.last_error

-- name: HoldAggregate
INSERT INTO outbox_blocked (aggregate_digest, lane, aggregate_type, aggregate_id, attempts, next_attempt_at, held, last_error, blocked_at)
VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?)
ON CONFLICT (aggregate_digest) DO UPDATE SET held = 1, attempts = excluded.attempts, last_error = excluded.last_error

-- name: BlockWaiting :once
-- An aggregate with waiting events is blocked, or they would be stranded.
INSERT INTO outbox_blocked (aggregate_digest, lane, aggregate_type, aggregate_id, next_attempt_at, blocked_at)
SELECT e.aggregate_digest, e.lane, e.aggregate_type, e.aggregate_id, ?2, ?2
  FROM json_each(?1) AS j
 CROSS JOIN outbox_event AS e ON e.id = (
       SELECT w.event_id FROM outbox_waiting AS w WHERE w.aggregate_digest = unhex(j.value) ORDER BY w.seq LIMIT 1)
 WHERE true

-- name: UnblockEmpty
DELETE FROM outbox_blocked
 WHERE aggregate_digest IN (SELECT unhex(value) FROM json_each(?)) AND held = 0
   AND NOT EXISTS (SELECT 1 FROM outbox_waiting AS w WHERE w.aggregate_digest = outbox_blocked.aggregate_digest)

-- name: QueueGoesOn
-- A head that has not failed is due at once; one that has keeps its own time.
UPDATE outbox_blocked SET next_attempt_at = ?2, attempts = 0
 WHERE aggregate_digest IN (SELECT unhex(value) FROM json_each(?1)) AND held = 0
   AND (SELECT w.attempts FROM outbox_waiting AS w WHERE w.aggregate_digest = outbox_blocked.aggregate_digest ORDER BY w.seq LIMIT 1) = 0

-- name: Hasten
-- Those that are due later, lane by lane; only as many are looked at as it takes, and those that wait for something else.
UPDATE outbox_blocked SET next_attempt_at = ?2
 WHERE aggregate_digest IN (
       SELECT b.aggregate_digest FROM outbox_lane AS l
        CROSS JOIN outbox_blocked AS b ON b.lane = l.lane AND b.held = 0 AND b.next_attempt_at > ?2
        WHERE (?1 >> l.lane) & 1 AND substr(b.last_error, 1, length(?3)) = ?3 LIMIT ?4 + 0)

-- Leases -------------------------------------------------------------------------------------------------------------

-- name: JoinRelays
INSERT INTO outbox_relay (owner, expires_at) VALUES (?1, CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?2)
ON CONFLICT (owner) DO UPDATE SET expires_at = excluded.expires_at

-- name: LiveRelays
SELECT COUNT(*) FROM outbox_relay WHERE expires_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER)

-- name: ForgetRelays
DELETE FROM outbox_relay WHERE owner = ? OR expires_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER)

-- name: RenewLanes
-- It also tells how many relays are alive: one statement less for each renewal of an idle relay.
UPDATE outbox_lane SET expires_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?3
 WHERE owner = ?2 AND expires_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER)
   AND (lane, token) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))
RETURNING lane, (SELECT COUNT(*) FROM outbox_relay AS r WHERE r.expires_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER))

-- name: FreeLanes
UPDATE outbox_lane SET owner = '', expires_at = 0
 WHERE owner = ?2 AND (lane, token) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))

-- name: TakeLanes
-- Also those of the owner's own that are not among ?4, the leases it has: the answer that told of them was lost.
UPDATE outbox_lane SET owner = ?1, token = token + 1, expires_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?2
 WHERE lane IN (SELECT lane FROM outbox_lane
                 WHERE owner = '' OR expires_at <= CAST(unixepoch('subsec') * 1000000 AS INTEGER)
                    OR owner = ?1 AND lane NOT IN (SELECT value ->> 0 FROM json_each(?4))
                 ORDER BY lane LIMIT ?3)
RETURNING lane, token

-- Inbox --------------------------------------------------------------------------------------------------------------

-- name: InsertMark :once
INSERT INTO inbox_mark (consumer, key_digest, payload_digest, marked_at) VALUES (?, ?, ?, ?)

-- name: FindMark
SELECT payload_digest FROM inbox_mark WHERE consumer = ? AND key_digest = ?

-- name: DeleteMark
-- Only the mark of this payload: one that another payload has under the same key stays.
DELETE FROM inbox_mark WHERE consumer = ? AND key_digest = ? AND payload_digest = ?

-- name: RaiseVersion
-- Affects no row when the version is not above the last one.
INSERT INTO inbox_version (consumer, aggregate_digest, version) VALUES (?, ?, ?)
ON CONFLICT (consumer, aggregate_digest) DO UPDATE SET version = excluded.version WHERE excluded.version > version

-- name: NoteBegun
INSERT INTO inbox_begun (consumer, part, key_digest, times, begun_at) VALUES (?, ?, ?, 1, ?)
ON CONFLICT (consumer, part) DO UPDATE
   SET times = CASE WHEN key_digest = excluded.key_digest THEN times + 1 ELSE 1 END, key_digest = excluded.key_digest, begun_at = excluded.begun_at

-- name: CountBegun
SELECT times FROM inbox_begun WHERE consumer = ? AND part = ?

-- name: RegisterType
-- Clocks of instances differ: the later time stays.
INSERT INTO inbox_type (consumer, type, seen_at) VALUES (?, ?, ?)
ON CONFLICT (consumer, type) DO UPDATE SET seen_at = max(seen_at, excluded.seen_at)

-- name: RegisteredTypes
SELECT type FROM inbox_type WHERE consumer = ? AND seen_at >= ? ORDER BY type

-- name: AnyBlocked
SELECT EXISTS (SELECT 1 FROM inbox_blocked WHERE consumer = ?)

-- name: BlockedOf
SELECT j.key FROM json_each(?2) AS j
 WHERE EXISTS (SELECT 1 FROM inbox_blocked AS b WHERE b.consumer = ?1 AND b.aggregate_digest = unhex(j.value))

-- name: EnqueueMessage :once
-- The position is above all that were ever given: AUTOINCREMENT's own counter, also when the queue was empty for a while.
INSERT INTO inbox_waiting (consumer, key_digest, aggregate_digest, attempts, last_error, enqueued_at, created_at, aggregate_version,
                           max_attempts, topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload, payload_digest, position)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
        ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'inbox_waiting'), 0) + 1)

-- name: EnqueueHead :once
-- The head of a queue is ahead of all that wait in it.
INSERT INTO inbox_waiting (consumer, key_digest, aggregate_digest, attempts, last_error, enqueued_at, created_at, aggregate_version,
                           max_attempts, topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload, payload_digest, position)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18,
        ifnull((SELECT MIN(position) - 1 FROM inbox_waiting WHERE consumer = ?1 AND aggregate_digest = ?3),
               ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'inbox_waiting'), 0) + 1))

-- name: MessageFailed
UPDATE inbox_waiting SET attempts = ?, last_error = ? WHERE consumer = ? AND key_digest = ? AND aggregate_digest = ? AND payload_digest = ?

-- name: FindPosition
SELECT position FROM inbox_waiting WHERE consumer = ? AND key_digest = ? AND aggregate_digest = ? AND payload_digest = ?

-- name: HeadPosition
-- Where a message that was in no queue belongs: ahead of the queue; when there is none, ahead of every position to come.
SELECT ifnull((SELECT MIN(position) - 1 FROM inbox_waiting WHERE consumer = ?1 AND aggregate_digest = ?2),
              ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'inbox_waiting'), 0))

-- name: DeleteMessage
DELETE FROM inbox_waiting WHERE consumer = ? AND key_digest = ? AND aggregate_digest = ? AND payload_digest = ?

-- name: BlockConsumer
INSERT INTO inbox_blocked (consumer, aggregate_digest, aggregate_type, aggregate_id, next_attempt_at, blocked_at) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (consumer, aggregate_digest) DO UPDATE SET next_attempt_at = excluded.next_attempt_at

-- name: HoldConsumer
INSERT INTO inbox_blocked (consumer, aggregate_digest, aggregate_type, aggregate_id, next_attempt_at, held, blocked_at) VALUES (?, ?, ?, ?, ?, 1, ?)
ON CONFLICT (consumer, aggregate_digest) DO UPDATE SET held = 1

-- name: BlockConsumerOnce :once
INSERT INTO inbox_blocked (consumer, aggregate_digest, aggregate_type, aggregate_id, next_attempt_at, blocked_at) VALUES (?, ?, ?, ?, ?, ?)

-- name: UnblockConsumer
DELETE FROM inbox_blocked
 WHERE consumer = ?1 AND aggregate_digest = ?2 AND held = 0
   AND NOT EXISTS (SELECT 1 FROM inbox_waiting AS w WHERE w.consumer = ?1 AND w.aggregate_digest = ?2)

-- name: ConsumerGoesOn
UPDATE inbox_blocked SET next_attempt_at = ?3
 WHERE consumer = ?1 AND aggregate_digest = ?2 AND held = 0
   AND (SELECT w.attempts FROM inbox_waiting AS w WHERE w.consumer = ?1 AND w.aggregate_digest = ?2 ORDER BY w.position, w.id LIMIT 1) = 0

-- name: DueQueues
SELECT aggregate_type, aggregate_id, next_attempt_at FROM inbox_blocked
 WHERE consumer = ? AND held = 0 ORDER BY next_attempt_at LIMIT ? + 0

-- name: ReadQueue
-- Nothing when the queue is gone, held or not due at ?3.
SELECT position, attempts, last_error, created_at, 0, aggregate_version, max_attempts, topic, type, aggregate_type, aggregate_id,
       message_id, event_key, headers, payload
  FROM inbox_waiting
 WHERE consumer = ?1 AND aggregate_digest = ?2
   AND EXISTS (SELECT 1 FROM inbox_blocked AS b WHERE b.consumer = ?1 AND b.aggregate_digest = ?2 AND b.held = 0 AND b.next_attempt_at <= ?3)
 ORDER BY position, id LIMIT ?4 + 0

-- name: InsertDeadLetter
INSERT INTO inbox_dead (id, consumer, hold, key_digest, aggregate_digest, position, attempts, died_at, place, error, created_at,
                        aggregate_version, max_attempts, topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- Outgoing calls -----------------------------------------------------------------------------------------------------

-- name: AddCall :once
INSERT INTO outside_call (kind, call_key, key_digest, call_group, next_at, created_at, updated_at, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- name: NextCall
-- The next time that anything can be claimed: when the first waiting call that is the oldest of its group is due, by the
-- caller's clock, and in how long the first lease expires, by the database's.
SELECT (SELECT c.next_at FROM outside_call AS c
         WHERE c.state = 0 AND c.kind IN (SELECT value FROM json_each(?1))
           AND (c.call_group = '' OR NOT EXISTS (
                SELECT 1 FROM outside_call AS o WHERE o.call_group = c.call_group AND o.call_group <> '' AND o.state < 2 AND o.id < c.id))
         ORDER BY c.next_at LIMIT 1),
       (SELECT c.lease_until - CAST(unixepoch('subsec') * 1000000 AS INTEGER) FROM outside_call AS c
         WHERE c.state = 1 AND c.kind IN (SELECT value FROM json_each(?1)) ORDER BY c.lease_until LIMIT 1)

-- name: ClaimExpiredCalls
-- A started call is the oldest of its group already. Its owner died or is too slow: it may have reached the other side.
UPDATE outside_call
   SET token = token + 1, lease_until = CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?2, attempts = attempts + 1, ambiguous = 1, updated_at = ?4
 WHERE id IN (SELECT c.id FROM outside_call AS c
               WHERE c.state = 1 AND c.lease_until <= CAST(unixepoch('subsec') * 1000000 AS INTEGER)
                 AND c.kind IN (SELECT value FROM json_each(?1)) ORDER BY c.lease_until LIMIT ?3 + 0)
RETURNING id, kind, call_key, call_group, token, attempts, ambiguous, payload

-- name: ClaimWaitingCalls
UPDATE outside_call
   SET state = 1, token = token + 1, lease_until = CAST(unixepoch('subsec') * 1000000 AS INTEGER) + ?2, updated_at = ?4
 WHERE id IN (SELECT c.id FROM outside_call AS c
               WHERE c.state = 0 AND c.next_at <= ?4 AND c.kind IN (SELECT value FROM json_each(?1))
                 AND (c.call_group = '' OR NOT EXISTS (
                      SELECT 1 FROM outside_call AS o WHERE o.call_group = c.call_group AND o.call_group <> '' AND o.state < 2 AND o.id < c.id))
               ORDER BY c.next_at LIMIT ?3 + 0)
RETURNING id, kind, call_key, call_group, token, attempts, ambiguous, payload

-- name: FinishCall
UPDATE outside_call
   SET state = ?3, attempts = attempts + ?4, ambiguous = ?5, next_at = ?6, lease_until = 0, error = ?7, result = ?8, updated_at = ?9
 WHERE key_digest = ?1 AND state = 1 AND token = ?2

-- Requests -----------------------------------------------------------------------------------------------------------

-- name: FindRequest
SELECT fingerprint, status, created_at, header, body FROM idempotency_record WHERE scope = ? AND key_digest = ?

-- name: RecordRequest :once
INSERT INTO idempotency_record (scope, key_digest, request_key, fingerprint, status, created_at, header, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- Operators ----------------------------------------------------------------------------------------------------------

-- name: DeadEvents
-- What is larger than an event's may be is not read.
SELECT d.event_id, d.attempts, d.error, d.place, d.died_at, d.hold,
       octet_length(e.payload), e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts,
       CASE WHEN octet_length(e.topic) <= 100 THEN e.topic ELSE '' END, CASE WHEN octet_length(e.type) <= 100 THEN e.type ELSE '' END,
       CASE WHEN octet_length(e.aggregate_type) <= 100 THEN e.aggregate_type ELSE '' END, CASE WHEN octet_length(e.aggregate_id) <= 255 THEN e.aggregate_id ELSE '' END,
       CASE WHEN octet_length(e.message_id) <= 255 THEN e.message_id ELSE '' END, CASE WHEN octet_length(e.event_key) <= 255 THEN e.event_key ELSE '' END,
       CASE WHEN octet_length(e.headers) <= 131072 THEN e.headers ELSE '{}' END, CASE WHEN octet_length(e.payload) <= 524288 THEN e.payload ELSE x'' END
  FROM outbox_dead AS d CROSS JOIN outbox_event AS e ON e.id = d.event_id
 WHERE d.event_id > ? ORDER BY d.event_id LIMIT ?

-- name: FindDeadEvent
SELECT d.aggregate_digest, (SELECT SUBSTR(e.event_key, 1, 255) FROM outbox_event AS e WHERE e.id = d.event_id),
       (SELECT MIN(o.event_id) FROM outbox_dead AS o WHERE o.aggregate_digest = d.aggregate_digest AND o.seq < d.seq)
  FROM outbox_dead AS d WHERE d.event_id = ?

-- name: RequeueDead
-- seq is the one that it had: ahead of everything that came after it, behind what came before.
INSERT INTO outbox_waiting (seq, event_id, attempts, aggregate_digest)
SELECT seq, event_id, 0, aggregate_digest FROM outbox_dead WHERE event_id = ?

-- name: RecordDiscarded
INSERT INTO outbox_discarded (event_id, attempts, died_at, place, error, discarded_at, discarded_by, reason)
SELECT event_id, attempts, died_at, place, error, ?2, ?3, ?4 FROM outbox_dead WHERE event_id = ?1

-- name: DeleteDead
DELETE FROM outbox_dead WHERE event_id = ?

-- name: ReleaseAggregate
UPDATE outbox_blocked SET held = 0
 WHERE aggregate_digest = ?1 AND NOT EXISTS (SELECT 1 FROM outbox_dead WHERE aggregate_digest = ?1 AND hold = 1)

-- name: EventsBelow
-- A window of the newest rows first: narrow columns, by primary key.
SELECT id, created_at FROM outbox_event WHERE id < ? ORDER BY id DESC LIMIT ?

-- name: ReplayEvents
-- In the writing transaction, so that nothing becomes pending twice. The pending rows are read once a statement.
INSERT INTO outbox_pending (lane, event_id)
SELECT e.lane, e.id FROM outbox_event AS e
 WHERE e.id BETWEEN ?1 AND ?2 AND e.created_at >= ?3
   AND NOT EXISTS (SELECT 1 FROM outbox_delayed AS d WHERE d.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM outbox_dead AS d WHERE d.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM outbox_discarded AS d WHERE d.event_id = e.id)
   AND e.id NOT IN (SELECT event_id FROM outbox_pending)
   AND e.id NOT IN (SELECT event_id FROM outbox_waiting)
 ORDER BY e.id

-- name: DueSince
-- Written before, but their time came since: they were sent since.
SELECT id FROM outbox_event WHERE deliver_at > 0 AND deliver_at >= ?1 AND created_at < ?1

-- name: ReplayDelayed
-- By id: what was made pending a moment ago may be sent by now, and must not be found again.
INSERT INTO outbox_pending (lane, event_id)
SELECT e.lane, e.id FROM json_each(?1) AS j CROSS JOIN outbox_event AS e ON e.id = j.value
 WHERE NOT EXISTS (SELECT 1 FROM outbox_delayed AS d WHERE d.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM outbox_dead AS d WHERE d.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM outbox_discarded AS d WHERE d.event_id = e.id)
   AND e.id NOT IN (SELECT event_id FROM outbox_pending)
   AND e.id NOT IN (SELECT event_id FROM outbox_waiting)

-- name: RecordAct
INSERT INTO machine_transition (machine, entity_id, move, from_state, to_state, cause, cause_key, actor, version, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?)

-- name: Acts
-- By the name of the machine, of which there are few, and not by id through the history of everything else.
SELECT id, machine, entity_id, move, cause, cause_key, actor, at
  FROM machine_transition WHERE machine IN ('ops.event', 'ops.letter', 'ops.sent') AND +id > ? ORDER BY +id LIMIT ?

-- name: DeadLetters
SELECT d.id, d.consumer, d.attempts, d.error, d.place, d.died_at, d.hold, d.state, d.closed_at, d.closed_by, d.reason,
       d.created_at, 0, d.aggregate_version, d.max_attempts, d.topic, d.type, d.aggregate_type, d.aggregate_id,
       d.message_id, d.event_key, d.headers, d.payload
  FROM inbox_dead AS d
 WHERE d.state = 'OPEN' AND d.seq > ifnull((SELECT a.seq FROM inbox_dead AS a WHERE a.id = ?2), 0) AND (?1 = '' OR d.consumer = ?1)
 ORDER BY d.seq LIMIT ?3

-- name: FindLetter
SELECT d.consumer, d.event_key, d.key_digest, d.aggregate_digest, d.aggregate_type, d.aggregate_id, d.payload,
       (SELECT MIN(o.id) FROM inbox_dead AS o
         WHERE o.state = 'OPEN' AND o.consumer = d.consumer AND o.aggregate_digest = d.aggregate_digest AND o.aggregate_id <> ''
           AND (o.position < d.position OR o.position = d.position AND o.seq < d.seq))
  FROM inbox_dead AS d WHERE d.id = ? AND d.state = 'OPEN'

-- name: RequeueLetter :once
INSERT INTO inbox_waiting (consumer, key_digest, aggregate_digest, position, enqueued_at, created_at, aggregate_version, max_attempts,
                           topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload, payload_digest)
SELECT consumer, key_digest, aggregate_digest, position, ?2, created_at, aggregate_version, max_attempts,
       topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload, ?3
  FROM inbox_dead WHERE id = ?1

-- name: CloseLetter
UPDATE inbox_dead SET state = ?2, closed_at = ?3, closed_by = ?4, reason = ?5 WHERE id = ?1

-- name: ReleaseConsumer
UPDATE inbox_blocked SET held = 0
 WHERE consumer = ?1 AND aggregate_digest = ?2
   AND NOT EXISTS (SELECT 1 FROM inbox_dead WHERE state = 'OPEN' AND consumer = ?1 AND aggregate_digest = ?2 AND hold = 1)

-- name: CountBacklog
-- One row a queue: how many, and since when. The event with the lowest id or position stands for the oldest.
SELECT COUNT(*), ifnull((SELECT created_at FROM outbox_event WHERE id = (SELECT event_id FROM outbox_pending ORDER BY seq LIMIT 1)), 0)
  FROM outbox_pending
UNION ALL SELECT COUNT(*), ifnull(MIN(deliver_at), 0) FROM outbox_delayed WHERE deliver_at <= ?1
UNION ALL SELECT COUNT(*), ifnull((SELECT created_at FROM outbox_event WHERE id = (
                           SELECT MIN(event_id) FROM outbox_delayed WHERE deliver_at > ?1)), 0) FROM outbox_delayed WHERE deliver_at > ?1
UNION ALL SELECT COUNT(*), ifnull((SELECT created_at FROM outbox_event WHERE id = (SELECT MIN(event_id) FROM outbox_waiting)), 0) FROM outbox_waiting
UNION ALL SELECT COUNT(*), ifnull(MIN(died_at), 0) FROM outbox_dead
UNION ALL SELECT COUNT(*), ifnull(MIN(enqueued_at), 0) FROM inbox_waiting
UNION ALL SELECT COUNT(*), ifnull(MIN(died_at), 0) FROM inbox_dead WHERE state = 'OPEN'
UNION ALL SELECT SUM(n), ifnull(MIN(since), 0) FROM (
          SELECT COUNT(*) AS n, MIN(created_at) AS since FROM outside_call WHERE state = 0
          UNION ALL SELECT COUNT(*), MIN(created_at) FROM outside_call WHERE state = 1)
UNION ALL SELECT COUNT(*), ifnull(MIN(updated_at), 0) FROM outside_call WHERE state >= 2 AND state = 3

-- Operators ask whether times can be meant ----------------------------------------------------------------------------

-- name: TimesBefore
-- Delayed events whose time is before one; whether they wait still.
SELECT e.id, e.deliver_at, (SELECT COUNT(*) FROM outbox_delayed AS d WHERE d.event_id = e.id) > 0 FROM outbox_event AS e
  INDEXED BY outbox_event_deliver
 WHERE e.deliver_at > 0 AND e.deliver_at < ? ORDER BY e.deliver_at LIMIT ?

-- name: TimesAfter
-- From the far end: what never comes is found, however many wait for years.
SELECT e.id, e.deliver_at, (SELECT COUNT(*) FROM outbox_delayed AS d WHERE d.event_id = e.id) > 0 FROM outbox_event AS e
  INDEXED BY outbox_event_deliver
 WHERE e.deliver_at > 0 AND e.deliver_at > ? ORDER BY e.deliver_at DESC LIMIT ?

-- name: StartOfKey
SELECT substr(event_key, 1, 255) FROM outbox_event WHERE id = ?

-- Retention ----------------------------------------------------------------------------------------------------------

-- name: EventsAbove
SELECT id, created_at FROM outbox_event WHERE id > ? ORDER BY id LIMIT ?

-- name: LastSeq
SELECT ifnull((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_pending'), 0)

-- name: SentAmong
-- Of a list of events those with no row that says they are unfinished. Runs on a reading connection.
SELECT j.value FROM json_each(?1) AS j
 WHERE NOT EXISTS (SELECT 1 FROM outbox_delayed AS d WHERE d.event_id = j.value)
   AND NOT EXISTS (SELECT 1 FROM outbox_dead AS d WHERE d.event_id = j.value)
   AND j.value NOT IN (SELECT event_id FROM outbox_pending)
   AND j.value NOT IN (SELECT event_id FROM outbox_waiting)

-- name: PurgeEvents
-- What SentAmong found may have been made pending since, by a replay: such rows have a seq above the one read with it.
DELETE FROM outbox_event
 WHERE id IN (SELECT value FROM json_each(?1))
   AND id NOT IN (SELECT event_id FROM outbox_pending WHERE seq > ?2)
   AND id NOT IN (SELECT event_id FROM outbox_waiting)
   AND NOT EXISTS (SELECT 1 FROM outbox_dead AS d WHERE d.event_id = outbox_event.id)

-- name: PurgeDiscarded
DELETE FROM outbox_discarded WHERE event_id IN (SELECT value FROM json_each(?1))
   AND NOT EXISTS (SELECT 1 FROM outbox_event AS e WHERE e.id = outbox_discarded.event_id)

-- name: PurgeMarks
-- The oldest have the lowest ids, nearly: a window of ids is looked at, larger than what clocks shuffle. The mark of an open
-- dead letter stays, and is passed over before the window is measured, so that many of them do not fill it: without its mark
-- a copy of the message would be applied, and the redriven letter once more.
DELETE FROM inbox_mark
 WHERE id IN (SELECT id FROM (SELECT m.id, m.marked_at FROM inbox_mark AS m
                               WHERE NOT EXISTS (SELECT 1 FROM inbox_dead AS d
                                      WHERE d.state = 'OPEN' AND d.consumer = m.consumer AND d.key_digest = m.key_digest)
                               ORDER BY m.id LIMIT max(?2, 1000))
               WHERE marked_at < ?1 LIMIT ?2)

-- name: PurgeRequests
DELETE FROM idempotency_record
 WHERE id IN (SELECT id FROM (SELECT id, created_at FROM idempotency_record ORDER BY id LIMIT max(?2, 1000)) WHERE created_at < ?1 LIMIT ?2)

-- name: PurgeCalls
DELETE FROM outside_call
 WHERE id IN (SELECT id FROM outside_call WHERE state >= 2 AND state = ?3 AND updated_at < ?1 ORDER BY updated_at LIMIT ?2)

-- name: BreakLanes
-- Ends every lease at once; tokens stay, so that what a former owner still tries is refused.
UPDATE outbox_lane SET owner = '', expires_at = 0 WHERE owner <> ''

-- name: ForgetAllRelays
DELETE FROM outbox_relay

-- name: BreakCalls
UPDATE outside_call SET lease_until = 0 WHERE state = 1
