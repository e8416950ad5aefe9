-- Statements of the MySQL and MariaDB store. Every write runs in a transaction at READ COMMITTED: no gaps are locked, each
-- statement sees what was committed before it began. The orders in which rows are locked: lanes by number; then rows of an
-- outbox's queues, for which the lane's lock is needed; rows of one statement by primary key. A long list is a JSON array, read in
-- its order, and each row found by its key (MariaDB turns a long IN into a subquery, and reads all of a table that looks small,
-- FORCE INDEX or not); a short one stands for ":name" and is written into the text: numbers, and digests as hexadecimal literals,
-- nothing else. Neither may a plan depend on statistics: who reads all of a table locks, or waits for, rows that are none of his business.
--
-- The database's clock is UTC_TIMESTAMP(6), fixed for a statement and not for a transaction, in microseconds. After a wait for
-- a lock it is a little old: that renews for shorter and takes over later than it might, never the other way.
--
-- ON DUPLICATE KEY UPDATE x = x + LAST_INSERT_ID(0): nothing is changed, and the insert id that is answered is 0, which is told
-- from a new row whether or not the connection counts found rows as affected.

-- Outbox -------------------------------------------------------------------------------------------------------------

-- name: InsertEvent
-- The trigger makes it pending or delayed. A duplicate locks the row that is there, and waits for who is inserting it. Here nothing is
-- done to it at all, and the servers answer 0 too: that costs 2 % less of the caller's transaction than LAST_INSERT_ID(0) does on MariaDB,
-- but is not promised by their manuals, so nothing whose effect hangs on the answer is written this way.
INSERT INTO outbox_event (created_at, deliver_at, lane, aggregate_version, max_attempts, key_digest, aggregate_digest,
                          topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE lane = lane

-- name: NextDue
-- Three probes of an index for each leased lane: its next delayed event, its next retry, and :pending, whether anything is
-- pending there, which spares an idle relay the second statement. One that is busy knows without asking. The last is the same in
-- each row, and read once: whether any of the 64 lanes has no owner; one that was given back ended at 0. Read without locks.
SELECT l.lane,
       (SELECT d.deliver_at FROM outbox_delayed AS d FORCE INDEX (outbox_delayed_due)
         WHERE d.lane = l.lane AND d.deliver_at > ? ORDER BY d.deliver_at LIMIT 1),
       (SELECT b.next_attempt_at FROM outbox_blocked AS b FORCE INDEX (outbox_blocked_due)
         WHERE b.lane = l.lane AND b.held = 0 AND b.next_attempt_at > ? ORDER BY b.next_attempt_at LIMIT 1),
       :pending,
       (SELECT MIN(u.expires_at) FROM outbox_lane AS u FORCE INDEX (PRIMARY) WHERE u.lane BETWEEN 0 AND 63)
           <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  FROM outbox_lane AS l FORCE INDEX (PRIMARY) WHERE l.lane IN (:lanes)

-- name: AnyPending
(SELECT 1 FROM outbox_pending AS p FORCE INDEX (outbox_pending_lane) WHERE p.lane = l.lane LIMIT 1)

-- name: ClaimLanes
-- :heads are the heads of the lanes, joined by UNION ALL; then each event is found by its key. Of one
-- that is larger than 16384 bytes the payload is NULL.
SELECT p.seq, p.lane, p.event_id, b.aggregate_digest IS NOT NULL,
       e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts, e.topic, e.type, e.aggregate_type, e.aggregate_id,
       e.message_id, e.event_key, CASE WHEN LENGTH(e.headers) <= 16384 THEN e.headers ELSE '{}' END,
       CASE WHEN LENGTH(e.payload) <= 16384 AND LENGTH(e.headers) <= 16384 THEN e.payload END
  FROM (:heads) AS p
 STRAIGHT_JOIN outbox_event AS e FORCE INDEX (PRIMARY) ON e.id = p.event_id
  LEFT JOIN outbox_blocked AS b FORCE INDEX (PRIMARY) ON b.aggregate_digest = e.aggregate_digest

-- name: LaneHead
-- Rows with a seq up to the floor are known to be gone: without it this walks over all that were deleted and that an old snapshot
-- keeps from being purged. The values stand in the text, for only a constant bounds a range of the index.
(SELECT seq, lane, event_id FROM outbox_pending FORCE INDEX (outbox_pending_lane) WHERE lane = :lane AND seq > :floor ORDER BY seq LIMIT :most)

-- name: AnyBelow
-- :pieces are ranges of lanes over which floors want to rise. Of an open transaction's row this fails at once: it waits for nobody, so
-- nobody can wait for it in a circle; what it locks is deleted already, and free again at once. Each entry is read here once.
SELECT seq FROM outbox_pending FORCE INDEX (outbox_pending_lane) WHERE :pieces LIMIT 1 FOR UPDATE NOWAIT

-- name: DueAggregates
SELECT aggregate_digest FROM outbox_blocked FORCE INDEX (outbox_blocked_due)
 WHERE lane = ? AND held = 0 AND next_attempt_at <= ? ORDER BY next_attempt_at LIMIT ?

-- name: ClaimQueue
-- Of an event that is larger than 16384 bytes the payload is NULL.
SELECT w.seq, w.attempts, w.event_id,
       e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts, e.topic, e.type, e.aggregate_type, e.aggregate_id,
       e.message_id, e.event_key, CASE WHEN LENGTH(e.headers) <= 16384 THEN e.headers ELSE '{}' END,
       CASE WHEN LENGTH(e.payload) <= 16384 AND LENGTH(e.headers) <= 16384 THEN e.payload END
  FROM outbox_waiting AS w FORCE INDEX (outbox_waiting_queue)
 STRAIGHT_JOIN outbox_event AS e FORCE INDEX (PRIMARY) ON e.id = w.event_id
 WHERE w.aggregate_digest = ? ORDER BY w.seq LIMIT ?

-- name: EventSizes
-- What is known of large events without their payloads and headers, and how long those are.
SELECT e.id, LENGTH(e.headers), LENGTH(e.payload),
       e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts, e.topic, e.type, e.aggregate_type, e.aggregate_id,
       e.message_id, e.event_key, '{}', NULL
  FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outbox_event AS e FORCE INDEX (PRIMARY) ON e.id = j.id

-- name: LargeEvents
SELECT e.id,
       e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts, e.topic, e.type, e.aggregate_type, e.aggregate_id,
       e.message_id, e.event_key, e.headers, e.payload
  FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outbox_event AS e FORCE INDEX (PRIMARY) ON e.id = j.id

-- name: DueDelayed
-- In the order in which they join their lane, and locked in it: a second relay waits here, and then finds them gone.
SELECT d.event_id, d.lane FROM outbox_delayed AS d FORCE INDEX (outbox_delayed_due)
 WHERE d.lane = ? AND d.deliver_at <= ? ORDER BY d.deliver_at, d.event_id LIMIT ? FOR UPDATE

-- name: PromoteDelayed
-- :rows is (lane, event_id), in the order in which they get their seq.
INSERT INTO outbox_pending (lane, event_id) VALUES :rows

-- name: DeleteDelayed
DELETE d FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outbox_delayed AS d FORCE INDEX (PRIMARY) ON d.event_id = j.id

-- name: SharedLanes
-- Of what is only taken away a second copy of the same settlement finds nothing: it is enough that nobody takes the lane over.
SELECT lane, owner, token, expires_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  FROM outbox_lane FORCE INDEX (PRIMARY) WHERE lane IN (:lanes) ORDER BY lane LOCK IN SHARE MODE

-- name: LockLanes
-- Everything that changes what waits, is blocked or is dead in a lane has its row, so that no two decide on each other's halves.
SELECT lane, owner, token, expires_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
  FROM outbox_lane FORCE INDEX (PRIMARY) WHERE lane IN (:lanes) ORDER BY lane FOR UPDATE

-- name: DeletePending
-- In one statement, in order of the primary key.
DELETE p FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outbox_pending AS p FORCE INDEX (PRIMARY) ON p.seq = j.id

-- name: DeleteWaiting
DELETE w FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outbox_waiting AS w FORCE INDEX (PRIMARY) ON w.seq = j.id

-- name: PendingToWaiting
-- From the row that is there: a settlement that is repeated finds none and changes nothing.
INSERT INTO outbox_waiting (seq, event_id, attempts, aggregate_digest)
SELECT p.seq, p.event_id, ?, e.aggregate_digest
  FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outbox_pending AS p FORCE INDEX (PRIMARY) ON p.seq = j.id
 STRAIGHT_JOIN outbox_event AS e FORCE INDEX (PRIMARY) ON e.id = p.event_id

-- name: WaitingAggregates
-- Digests are those of the rows, so that a row to which another program gave a wrong one is in one queue all the same.
SELECT w.aggregate_digest FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outbox_waiting AS w FORCE INDEX (PRIMARY) ON w.seq = j.id

-- name: PendingAggregate
SELECT e.aggregate_digest, e.lane FROM outbox_pending AS p STRAIGHT_JOIN outbox_event AS e ON e.id = p.event_id WHERE p.seq = ?

-- name: WaitingAggregate
SELECT w.aggregate_digest, e.lane FROM outbox_waiting AS w STRAIGHT_JOIN outbox_event AS e ON e.id = w.event_id WHERE w.seq = ?

-- name: WaitingFailed
UPDATE outbox_waiting SET attempts = ? WHERE seq = ?

-- name: BuryPending
INSERT INTO outbox_dead (event_id, seq, hold, attempts, died_at, aggregate_digest, place, error)
SELECT p.event_id, p.seq, ?, ?, ?, e.aggregate_digest, ?, ?
  FROM outbox_pending AS p STRAIGHT_JOIN outbox_event AS e ON e.id = p.event_id WHERE p.seq = ?

-- name: BuryWaiting
INSERT INTO outbox_dead (event_id, seq, hold, attempts, died_at, aggregate_digest, place, error)
SELECT w.event_id, w.seq, ?, ?, ?, w.aggregate_digest, ?, ? FROM outbox_waiting AS w WHERE w.seq = ?

-- name: BlockAggregate
INSERT INTO outbox_blocked (aggregate_digest, lane, aggregate_type, aggregate_id, attempts, next_attempt_at, last_error, blocked_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE attempts = VALUES(attempts), next_attempt_at = VALUES(next_attempt_at), last_error = VALUES(last_error)

-- name: HoldAggregate
INSERT INTO outbox_blocked (aggregate_digest, lane, aggregate_type, aggregate_id, attempts, next_attempt_at, held, last_error, blocked_at)
VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?)
ON DUPLICATE KEY UPDATE held = 1, attempts = VALUES(attempts), last_error = VALUES(last_error)

-- name: QueueHead
-- The head of one queue. Several are asked for in one statement, joined by UNION ALL.
(SELECT w.aggregate_digest, w.attempts, e.lane, e.aggregate_type, e.aggregate_id
   FROM outbox_waiting AS w FORCE INDEX (outbox_waiting_queue)
  STRAIGHT_JOIN outbox_event AS e FORCE INDEX (PRIMARY) ON e.id = w.event_id
  WHERE w.aggregate_digest = :digest ORDER BY w.seq LIMIT 1)

-- name: BlockWaiting :once
-- An aggregate with waiting events is blocked, or they would be stranded.
INSERT INTO outbox_blocked (aggregate_digest, lane, aggregate_type, aggregate_id, next_attempt_at, blocked_at)
VALUES (?, ?, ?, ?, ?, ?)

-- name: UnblockEmpty
DELETE b FROM outbox_blocked AS b FORCE INDEX (PRIMARY) WHERE b.aggregate_digest IN (:digests) AND b.held = 0

-- name: QueueGoesOn
-- A head that has not failed is due at once; one that has keeps its own time.
UPDATE outbox_blocked FORCE INDEX (PRIMARY) SET next_attempt_at = ?, attempts = 0 WHERE aggregate_digest IN (:digests) AND held = 0

-- name: DueLater
-- Read without locks, by the same statement whatever the number of lanes; only as many rows are looked at as it takes, and those that
-- wait for something else.
SELECT aggregate_digest FROM outbox_blocked FORCE INDEX (outbox_blocked_due)
 WHERE lane IN (:lanes) AND held = 0 AND next_attempt_at > ? AND LEFT(last_error, CHAR_LENGTH(?)) = ? LIMIT ?

-- name: Hasten
-- The lanes are locked. What was settled since it was read may wait for something else by now, or is gone.
UPDATE outbox_blocked FORCE INDEX (PRIMARY) SET next_attempt_at = ?
 WHERE aggregate_digest IN (:digests) AND held = 0 AND next_attempt_at > ? AND LEFT(last_error, CHAR_LENGTH(?)) = ?

-- Leases -------------------------------------------------------------------------------------------------------------

-- name: JoinRelays
INSERT INTO outbox_relay (owner, expires_at) VALUES (?, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?)
ON DUPLICATE KEY UPDATE expires_at = VALUES(expires_at)

-- name: LiveRelays
-- Read without locks: there are as many rows as relays.
SELECT owner, expires_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM outbox_relay

-- name: ForgetRelay
DELETE FROM outbox_relay WHERE owner = ?

-- name: ForgetExpired
-- By its key, and only if it has not joined again meanwhile.
DELETE FROM outbox_relay WHERE owner = ? AND expires_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- name: RenewLanes
UPDATE outbox_lane FORCE INDEX (PRIMARY) SET expires_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?
 WHERE lane IN (:lanes) AND owner = ?

-- name: FreeLanes
UPDATE outbox_lane FORCE INDEX (PRIMARY) SET owner = '', expires_at = 0 WHERE lane IN (:lanes) AND owner = ?

-- name: FreeableLanes
-- Also those of the owner's own that are not among :lanes, the leases it has: the answer that told of them was lost. A lane that
-- somebody has locked is passed over; so nobody waits here, and no two can wait for each other.
SELECT lane, token FROM outbox_lane FORCE INDEX (PRIMARY)
 WHERE lane BETWEEN 0 AND 63
   AND (owner = '' OR expires_at <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) OR owner = ? AND lane NOT IN (:lanes))
 ORDER BY lane LIMIT ? FOR UPDATE SKIP LOCKED

-- name: TakeLanes
UPDATE outbox_lane FORCE INDEX (PRIMARY)
   SET owner = ?, token = token + 1, expires_at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?
 WHERE lane IN (:lanes)

-- Inbox --------------------------------------------------------------------------------------------------------------

-- name: InsertMark
-- Inserted first, never looked for first: a duplicate waits until the transaction that has the key ends.
INSERT INTO inbox_mark (consumer, key_digest, payload_digest, marked_at) VALUES (?, ?, ?, ?)
ON DUPLICATE KEY UPDATE marked_at = marked_at + LAST_INSERT_ID(0)

-- name: FindMark
SELECT payload_digest FROM inbox_mark WHERE consumer = ? AND key_digest = ?

-- name: DeleteMark
-- Only the mark of this payload: one that another payload has under the same key stays.
DELETE FROM inbox_mark WHERE consumer = ? AND key_digest = ? AND payload_digest = ?

-- name: RaiseVersion
-- The insert id that is answered is 1 when the version is not above the last one; then nothing is changed.
INSERT INTO inbox_version (consumer, aggregate_digest, version) VALUES (?, ?, ?)
ON DUPLICATE KEY UPDATE version = IF(VALUES(version) > version, VALUES(version), version + LAST_INSERT_ID(1) - 1)

-- name: NoteBegun
-- Two processes that note at once take turns at the row. Columns are set from left to right: times still sees the old key.
INSERT INTO inbox_begun (consumer, part, key_digest, times, begun_at) VALUES (?, ?, ?, 1, ?)
ON DUPLICATE KEY UPDATE times = IF(key_digest = VALUES(key_digest), times + 1, 1), key_digest = VALUES(key_digest), begun_at = VALUES(begun_at)

-- name: CountBegun
SELECT times FROM inbox_begun WHERE consumer = ? AND part = ?

-- name: RegisterType
-- Clocks of instances differ: the later time stays. Types are registered in order, so that two instances do not wait for each other.
INSERT INTO inbox_type (consumer, type, seen_at) VALUES (?, ?, ?)
ON DUPLICATE KEY UPDATE seen_at = GREATEST(seen_at, VALUES(seen_at))

-- name: RegisteredTypes
SELECT type FROM inbox_type WHERE consumer = ? AND seen_at >= ? ORDER BY type

-- name: LockBlocked
-- In order of the primary key. What is not there is not locked.
SELECT aggregate_digest FROM inbox_blocked FORCE INDEX (PRIMARY)
 WHERE consumer = ? AND aggregate_digest IN (:digests) ORDER BY aggregate_digest FOR UPDATE

-- name: EnqueueMessage
-- The position of a row at the tail is its id, which TailPosition writes: above all that were ever given.
INSERT INTO inbox_waiting (consumer, key_digest, aggregate_digest, attempts, last_error, enqueued_at, created_at, aggregate_version,
                           max_attempts, topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload, payload_digest, position)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE max_attempts = max_attempts + LAST_INSERT_ID(0)

-- name: TailPosition
UPDATE inbox_waiting SET position = id WHERE id = ?

-- name: HeadPosition
-- One below the head of the queue; NULL when there is no queue.
SELECT (SELECT w.position - 1 FROM inbox_waiting AS w FORCE INDEX (inbox_waiting_queue)
         WHERE w.consumer = ? AND w.aggregate_digest = ? ORDER BY w.position LIMIT 1)

-- name: DeadPosition
-- The last position of an open dead letter of the aggregate; NULL when there is none.
SELECT (SELECT d.position FROM inbox_dead AS d FORCE INDEX (inbox_dead_open)
         WHERE d.state = 'OPEN' AND d.consumer = ? AND d.aggregate_digest = ? ORDER BY d.position DESC LIMIT 1)

-- name: MessageFailed
UPDATE inbox_waiting SET attempts = ?, last_error = ? WHERE consumer = ? AND key_digest = ? AND aggregate_digest = ? AND payload_digest = ?

-- name: FindPosition
SELECT position FROM inbox_waiting WHERE consumer = ? AND key_digest = ? AND aggregate_digest = ? AND payload_digest = ?

-- name: DeleteMessage
DELETE FROM inbox_waiting WHERE consumer = ? AND key_digest = ? AND aggregate_digest = ? AND payload_digest = ?

-- name: BlockConsumer
INSERT INTO inbox_blocked (consumer, aggregate_digest, aggregate_type, aggregate_id, next_attempt_at, blocked_at) VALUES (?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE next_attempt_at = VALUES(next_attempt_at)

-- name: HoldConsumer
INSERT INTO inbox_blocked (consumer, aggregate_digest, aggregate_type, aggregate_id, next_attempt_at, held, blocked_at) VALUES (?, ?, ?, ?, ?, 1, ?)
ON DUPLICATE KEY UPDATE held = 1

-- name: BlockConsumerOnce :once
-- It locks the row when it is there: what UnblockConsumer and ConsumerGoesOn see of the queue is then whole.
INSERT INTO inbox_blocked (consumer, aggregate_digest, aggregate_type, aggregate_id, next_attempt_at, blocked_at) VALUES (?, ?, ?, ?, ?, ?)

-- name: UnblockConsumer
DELETE FROM inbox_blocked
 WHERE consumer = ? AND aggregate_digest = ? AND held = 0
   AND NOT EXISTS (SELECT 1 FROM inbox_waiting AS w WHERE w.consumer = ? AND w.aggregate_digest = ?)

-- name: ConsumerGoesOn
UPDATE inbox_blocked SET next_attempt_at = ?
 WHERE consumer = ? AND aggregate_digest = ? AND held = 0
   AND (SELECT w.attempts FROM inbox_waiting AS w FORCE INDEX (inbox_waiting_queue)
         WHERE w.consumer = ? AND w.aggregate_digest = ? ORDER BY w.position, w.id LIMIT 1) = 0

-- name: DueQueues
SELECT aggregate_type, aggregate_id, next_attempt_at FROM inbox_blocked FORCE INDEX (inbox_blocked_due)
 WHERE consumer = ? AND held = 0 ORDER BY next_attempt_at LIMIT ?

-- name: LockQueue
-- Nothing when the queue is gone, held or not due.
SELECT next_attempt_at FROM inbox_blocked FORCE INDEX (PRIMARY)
 WHERE consumer = ? AND aggregate_digest = ? AND held = 0 AND next_attempt_at <= ? FOR UPDATE

-- name: ReadQueue
-- A statement of its own, so that it sees what the transaction has left that LockQueue waited for.
SELECT position, attempts, last_error, created_at, 0, aggregate_version, max_attempts, topic, type, aggregate_type, aggregate_id,
       message_id, event_key, headers, payload
  FROM inbox_waiting FORCE INDEX (inbox_waiting_queue) WHERE consumer = ? AND aggregate_digest = ? ORDER BY position, id LIMIT ?

-- name: InsertDeadLetter
INSERT INTO inbox_dead (id, consumer, hold, key_digest, aggregate_digest, position, attempts, died_at, place, error, created_at,
                        aggregate_version, max_attempts, topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- Outgoing calls -----------------------------------------------------------------------------------------------------

-- name: LockGroup :once
-- It locks the group's row until the transaction ends, so that calls of a group are in order of their commits.
INSERT INTO outside_group (call_group) VALUES (?)

-- name: AddCall
INSERT INTO outside_call (kind, call_key, key_digest, call_group, next_at, created_at, updated_at, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE token = token + LAST_INSERT_ID(0)

-- name: NextCall
-- The next time that anything can be claimed: when the first waiting call that is the oldest of its group is due, by the
-- caller's clock, and in how long the first lease expires, by the database's.
SELECT (SELECT c.next_at FROM outside_call AS c FORCE INDEX (outside_call_waiting)
         WHERE c.state = 0 AND c.kind IN (:kinds)
           AND (c.call_group = '' OR NOT EXISTS (
                SELECT 1 FROM outside_call AS o FORCE INDEX (outside_call_group)
                 WHERE o.call_group = c.call_group AND o.call_group <> '' AND o.state < 2 AND o.id < c.id))
         ORDER BY c.next_at LIMIT 1),
       (SELECT c.lease_until - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
          FROM outside_call AS c FORCE INDEX (outside_call_started)
         WHERE c.state = 1 AND c.kind IN (:kinds) ORDER BY c.lease_until LIMIT 1)

-- name: ClaimExpiredCalls
-- A started call is the oldest of its group already. Its owner died or is too slow: it may have reached the other side.
SELECT c.id, c.kind, c.call_key, c.call_group, c.token + 1, c.attempts + 1, 1, c.payload
  FROM outside_call AS c FORCE INDEX (outside_call_started)
 WHERE c.state = 1 AND c.lease_until <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND c.kind IN (:kinds)
 ORDER BY c.lease_until LIMIT ? FOR UPDATE SKIP LOCKED

-- name: ClaimWaitingCalls
-- What another claims is passed over. The call's own row is locked, and no more is needed: Add sees to it that nothing can come
-- to be open and older in its group, so that a call that is the oldest stays it.
SELECT c.id, c.kind, c.call_key, c.call_group, c.token + 1, c.attempts, c.ambiguous, c.payload
  FROM outside_call AS c FORCE INDEX (outside_call_waiting)
 WHERE c.state = 0 AND c.next_at <= ? AND c.kind IN (:kinds)
   AND (c.call_group = '' OR NOT EXISTS (
        SELECT 1 FROM outside_call AS o FORCE INDEX (outside_call_group)
         WHERE o.call_group = c.call_group AND o.call_group <> '' AND o.state < 2 AND o.id < c.id))
 ORDER BY c.next_at LIMIT ? FOR UPDATE SKIP LOCKED

-- name: StartExpiredCalls
UPDATE outside_call FORCE INDEX (PRIMARY)
   SET token = token + 1, lease_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?,
       attempts = attempts + 1, ambiguous = 1, updated_at = ?
 WHERE id IN (:ids)

-- name: StartWaitingCalls
UPDATE outside_call FORCE INDEX (PRIMARY)
   SET state = 1, token = token + 1, lease_until = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?, updated_at = ?
 WHERE id IN (:ids)

-- name: FinishCall
-- It changes the state or the number of attempts, so that a row that is found is a row that is affected.
UPDATE outside_call
   SET state = ?, attempts = attempts + ?, ambiguous = ?, next_at = ?, lease_until = 0, error = ?, result = ?, updated_at = ?
 WHERE key_digest = ? AND state = 1 AND token = ?

-- Requests -----------------------------------------------------------------------------------------------------------

-- name: FindRequest
SELECT fingerprint, status, created_at, header, body FROM idempotency_record WHERE scope = ? AND key_digest = ?

-- name: RecordRequest
INSERT INTO idempotency_record (scope, key_digest, request_key, fingerprint, status, created_at, header, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE status = status + LAST_INSERT_ID(0)

-- Operators ----------------------------------------------------------------------------------------------------------

-- name: DeadEvents
-- What is larger than an event's may be is not read.
SELECT d.event_id, d.attempts, d.error, d.place, d.died_at, d.hold,
       LENGTH(e.payload), e.created_at, e.deliver_at, e.aggregate_version, e.max_attempts, e.topic, e.type, e.aggregate_type, e.aggregate_id,
       e.message_id, e.event_key,
       CASE WHEN LENGTH(e.headers) <= 131072 THEN e.headers ELSE '{}' END, CASE WHEN LENGTH(e.payload) <= 524288 THEN e.payload ELSE '' END
  FROM outbox_dead AS d STRAIGHT_JOIN outbox_event AS e ON e.id = d.event_id
 WHERE d.event_id > ? ORDER BY d.event_id LIMIT ?

-- name: LaneOfEvent
SELECT lane FROM outbox_event WHERE id = ?

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
SELECT event_id, attempts, died_at, place, error, ?, ?, ? FROM outbox_dead WHERE event_id = ?

-- name: DeleteDead
DELETE FROM outbox_dead WHERE event_id = ?

-- name: ReleaseAggregate
UPDATE outbox_blocked SET held = 0
 WHERE aggregate_digest = ? AND NOT EXISTS (SELECT 1 FROM outbox_dead AS d WHERE d.aggregate_digest = ? AND d.hold = 1)

-- name: EventsBelow
-- A window of the newest rows first.
SELECT id, created_at FROM outbox_event WHERE id < ? ORDER BY id DESC LIMIT ?

-- name: LockEvents
-- So that a replay and another replay, or a purge, do not decide on the same event. Each sees what the other has done to it
-- only in its next statement.
SELECT id FROM outbox_event FORCE INDEX (PRIMARY) WHERE id BETWEEN ? AND ? AND created_at >= ? ORDER BY id FOR UPDATE

-- name: LockListed
-- As LockEvents, of a sorted list: by primary key in its order, whatever the statistics say. An IN would be a walk over the table when they
-- say that it is small, and lock the rows between.
SELECT e.id FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outbox_event AS e FORCE INDEX (PRIMARY) ON e.id = j.id
   FOR UPDATE /*!80001 OF e */

-- name: ReplayEvents
INSERT INTO outbox_pending (lane, event_id)
SELECT e.lane, e.id FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outbox_event AS e FORCE INDEX (PRIMARY) ON e.id = j.id
 WHERE NOT EXISTS (SELECT 1 FROM outbox_delayed AS d WHERE d.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM outbox_dead AS d WHERE d.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM outbox_discarded AS d WHERE d.event_id = e.id)
   AND e.id NOT IN (SELECT p.event_id FROM outbox_pending AS p)
   AND e.id NOT IN (SELECT w.event_id FROM outbox_waiting AS w)
 ORDER BY e.id

-- name: DueSince
-- Written before, but their time came since: they were sent since.
SELECT id FROM outbox_event FORCE INDEX (outbox_event_deliver) WHERE deliver_at > 0 AND deliver_at >= ? AND created_at < ?

-- name: RecordAct
INSERT INTO machine_transition (machine, entity_id, move, from_state, to_state, cause, cause_key, actor, version, at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?)

-- name: Acts
-- By the name of the machine, of which there are few, and not by id through the history of everything else.
SELECT id, machine, entity_id, move, cause, cause_key, actor, at
  FROM machine_transition FORCE INDEX (machine_transition_entity)
 WHERE machine IN ('ops.event', 'ops.letter', 'ops.sent') AND id > ? ORDER BY id LIMIT ?

-- name: DeadLetters
SELECT d.id, d.consumer, d.attempts, d.error, d.place, d.died_at, d.hold, d.state, d.closed_at, d.closed_by, d.reason,
       d.created_at, 0, d.aggregate_version, d.max_attempts, d.topic, d.type, d.aggregate_type, d.aggregate_id,
       d.message_id, d.event_key, d.headers, d.payload
  FROM inbox_dead AS d FORCE INDEX (inbox_dead_list)
 WHERE d.state = 'OPEN' AND d.seq > COALESCE((SELECT a.seq FROM inbox_dead AS a WHERE a.id = ?), 0) AND (? = '' OR d.consumer = ?)
 ORDER BY d.seq LIMIT ?

-- name: LetterAggregate
SELECT consumer, aggregate_digest, aggregate_type, aggregate_id FROM inbox_dead WHERE id = ? AND state = 'OPEN'

-- name: FindLetter
SELECT d.event_key, d.key_digest, d.payload,
       (SELECT MIN(o.id) FROM inbox_dead AS o
         WHERE o.state = 'OPEN' AND o.consumer = d.consumer AND o.aggregate_digest = d.aggregate_digest AND o.aggregate_id <> ''
           AND (o.position < d.position OR o.position = d.position AND o.seq < d.seq))
  FROM inbox_dead AS d WHERE d.id = ? AND d.state = 'OPEN' FOR UPDATE

-- name: RequeueLetter
INSERT INTO inbox_waiting (consumer, key_digest, aggregate_digest, position, enqueued_at, created_at, aggregate_version, max_attempts,
                           topic, type, aggregate_type, aggregate_id, message_id, event_key, headers, payload, payload_digest)
SELECT d.consumer, d.key_digest, d.aggregate_digest, d.position, ?, d.created_at, d.aggregate_version, d.max_attempts,
       d.topic, d.type, d.aggregate_type, d.aggregate_id, d.message_id, d.event_key, d.headers, d.payload, ?
  FROM inbox_dead AS d WHERE d.id = ?
ON DUPLICATE KEY UPDATE attempts = inbox_waiting.attempts + LAST_INSERT_ID(0)

-- name: CloseLetter
UPDATE inbox_dead SET state = ?, closed_at = ?, closed_by = ?, reason = ? WHERE id = ?

-- name: ReleaseConsumer
UPDATE inbox_blocked SET held = 0
 WHERE consumer = ? AND aggregate_digest = ?
   AND NOT EXISTS (SELECT 1 FROM inbox_dead AS d WHERE d.state = 'OPEN' AND d.consumer = ? AND d.aggregate_digest = ? AND d.hold = 1)

-- name: CountBacklog
-- One row a queue: how many, and since when. The event with the lowest id or position stands for the oldest.
SELECT 0, COUNT(*), COALESCE((SELECT created_at FROM outbox_event WHERE id = (SELECT event_id FROM outbox_pending ORDER BY seq LIMIT 1)), 0)
  FROM outbox_pending
UNION ALL SELECT 1, COUNT(*), COALESCE(MIN(deliver_at), 0) FROM outbox_delayed WHERE deliver_at <= ?
UNION ALL SELECT 2, COUNT(*), COALESCE((SELECT created_at FROM outbox_event WHERE id = (
                           SELECT MIN(event_id) FROM outbox_delayed WHERE deliver_at > ?)), 0) FROM outbox_delayed WHERE deliver_at > ?
UNION ALL SELECT 3, COUNT(*), COALESCE((SELECT created_at FROM outbox_event WHERE id = (SELECT MIN(event_id) FROM outbox_waiting)), 0) FROM outbox_waiting
UNION ALL SELECT 4, COUNT(*), COALESCE(MIN(died_at), 0) FROM outbox_dead
UNION ALL SELECT 5, COUNT(*), COALESCE(MIN(enqueued_at), 0) FROM inbox_waiting
UNION ALL SELECT 6, COUNT(*), COALESCE(MIN(died_at), 0) FROM inbox_dead WHERE state = 'OPEN'
UNION ALL SELECT 7, COUNT(*), COALESCE(MIN(created_at), 0) FROM outside_call WHERE state < 2
UNION ALL SELECT 8, COUNT(*), COALESCE(MIN(updated_at), 0) FROM outside_call WHERE state = 3

-- Operators ask whether times can be meant ----------------------------------------------------------------------------

-- name: TimesBefore
-- Delayed events whose time is before one; whether they wait still. It reads the index only, and MySQL ends it after five seconds.
SELECT /*+ MAX_EXECUTION_TIME(5000) */ e.id, e.deliver_at, (SELECT COUNT(*) FROM outbox_delayed AS d WHERE d.event_id = e.id) > 0 FROM outbox_event AS e
  FORCE INDEX (outbox_event_deliver)
 WHERE e.deliver_at > 0 AND e.deliver_at < ? ORDER BY e.deliver_at LIMIT ?

-- name: TimesAfter
-- From the far end: what never comes is found, however many wait for years.
SELECT /*+ MAX_EXECUTION_TIME(5000) */ e.id, e.deliver_at, (SELECT COUNT(*) FROM outbox_delayed AS d WHERE d.event_id = e.id) > 0 FROM outbox_event AS e
  FORCE INDEX (outbox_event_deliver)
 WHERE e.deliver_at > 0 AND e.deliver_at > ? ORDER BY e.deliver_at DESC LIMIT ?

-- name: StartOfKey
SELECT substr(event_key, 1, 255) FROM outbox_event WHERE id = ?

-- Retention ----------------------------------------------------------------------------------------------------------

-- name: EventsAbove
SELECT id, created_at FROM outbox_event WHERE id > ? ORDER BY id LIMIT ?

-- name: SentAmong
-- Of a list of events (shorter than what MariaDB makes a subquery of) those with no row that says they are unfinished. Nothing is locked:
-- InnoDB reads all of a row that it locks, with a payload of any size, also when another condition passes it over.
SELECT e.id FROM outbox_event AS e FORCE INDEX (PRIMARY)
 WHERE e.id IN (:ids)
   AND NOT EXISTS (SELECT 1 FROM outbox_delayed AS d WHERE d.event_id = e.id)
   AND NOT EXISTS (SELECT 1 FROM outbox_dead AS d WHERE d.event_id = e.id)
   AND e.id NOT IN (SELECT p.event_id FROM outbox_pending AS p)
   AND e.id NOT IN (SELECT w.event_id FROM outbox_waiting AS w)
 ORDER BY e.id LIMIT ?

-- name: LockSent
-- By primary key, whatever the statistics say: a walk over the table would read the rows between. What another purge, or a replay, has
-- locked is passed over. MySQL wants to be told that the list is not locked, and MariaDB, which passes such a comment over, cannot be.
SELECT e.id FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outbox_event AS e FORCE INDEX (PRIMARY) ON e.id = j.id
   FOR UPDATE /*!80001 OF e */ SKIP LOCKED

-- name: UnfinishedAmong
-- What was made pending before the lock was had, and what has become of it since; asked again, under the lock, in one statement:
-- an event that moves from one table to another meanwhile is seen in one of them.
SELECT p.event_id FROM outbox_pending AS p
 WHERE p.event_id IN (SELECT j.id FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j)
UNION ALL
SELECT w.event_id FROM outbox_waiting AS w
 WHERE w.event_id IN (SELECT j.id FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j)
UNION ALL
SELECT d.event_id FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outbox_dead AS d FORCE INDEX (PRIMARY) ON d.event_id = j.id
UNION ALL
SELECT d.event_id FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outbox_delayed AS d FORCE INDEX (PRIMARY) ON d.event_id = j.id

-- name: PurgeEvents
DELETE e FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outbox_event AS e FORCE INDEX (PRIMARY) ON e.id = j.id

-- name: PurgeDiscarded
DELETE d FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outbox_discarded AS d FORCE INDEX (PRIMARY) ON d.event_id = j.id

-- name: OldMarks
-- The oldest have the lowest ids, nearly: a window of ids is looked at, larger than what clocks shuffle. The mark of an open
-- dead letter stays, and is passed over before the window is measured, so that many of them do not fill it: without its mark
-- a copy of the message would be applied, and the redriven letter once more.
SELECT m.id, m.marked_at FROM inbox_mark AS m FORCE INDEX (PRIMARY)
 WHERE NOT EXISTS (SELECT 1 FROM inbox_dead AS d WHERE d.state = 'OPEN' AND d.consumer = m.consumer AND d.key_digest = m.key_digest)
 ORDER BY m.id LIMIT ?

-- name: PurgeMarks
-- By primary key.
DELETE m FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN inbox_mark AS m FORCE INDEX (PRIMARY) ON m.id = j.id

-- name: OldRequests
SELECT id, created_at FROM idempotency_record ORDER BY id LIMIT ?

-- name: PurgeRequests
DELETE r FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN idempotency_record AS r FORCE INDEX (PRIMARY) ON r.id = j.id

-- name: OldCalls
SELECT id, call_group FROM outside_call FORCE INDEX (outside_call_finished) WHERE state = ? AND updated_at < ? ORDER BY updated_at LIMIT ?

-- name: PurgeCalls
DELETE c FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) AS j STRAIGHT_JOIN outside_call AS c FORCE INDEX (PRIMARY) ON c.id = j.id

-- name: PurgeGroup
DELETE FROM outside_group
 WHERE call_group = ? AND NOT EXISTS (SELECT 1 FROM outside_call AS c WHERE c.call_group = ?)

-- name: BreakLanes
-- Ends every lease at once; tokens stay, so that what a former owner still tries is refused.
UPDATE outbox_lane SET owner = '', expires_at = 0 WHERE owner <> ''

-- name: ForgetAllRelays
DELETE FROM outbox_relay

-- name: BreakCalls
UPDATE outside_call FORCE INDEX (outside_call_started) SET lease_until = 0 WHERE state = 1
