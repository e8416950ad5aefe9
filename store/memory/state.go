package memory

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/idempotency"
	"github.com/convergo/convergo/ops"
	"github.com/convergo/convergo/outside"
)

// All times in a state are microseconds (convergo.Micros), as in every store.

// state is everything a transaction sees. Its tables are immutable, so a copy of the struct is a snapshot.
type state struct {
	numbers table[string, int]

	// Outbox and relay. An event with no row in pending, delayed, waiting, dead or discarded was sent.
	lastEvent, lastSeq int64 // never lowered, so ids and positions are never used again
	events             table[int64, eventRow]
	eventKeys          table[convergo.Digest, int64]
	pending            table[laneSeq, int64]
	delayed            table[laneDue, none]
	blocked            table[convergo.Digest, blockedRow]
	blockedDue         table[laneBlocked, none] // of those not held
	waiting            table[placeInQueue, waitingRow]
	dead               table[int64, deadRow]
	discarded          table[int64, discardedRow]
	lanes              table[convergo.Lane, laneRow]
	relays             table[string, int64] // owner → end of membership

	// Inbox.
	marks       table[consumerKey, markRow]
	versions    table[consumerKey, int64]
	inBlocked   table[consumerKey, inBlockedRow]
	inDue       table[consumerDue, none] // of those not held and not empty
	inQueue     table[consumerPlace, inWaitingRow]
	inPlaces    table[consumerKey, int64] // messageKey → place in its queue
	inDead      table[string, inDeadRow]
	inBegun     table[consumerName, begunRow] // by partition
	inTypes     table[consumerName, int64]    // when an instance last said that it handles the type
	lastInPlace int64
	lastInDead  int64

	// Outgoing calls and recorded requests.
	lastCall int64
	calls    table[int64, callRow]
	callKeys table[convergo.Digest, int64]
	open     table[int64, none] // calls that are neither done nor failed
	requests table[requestKey, idempotency.Record]

	// What persons did.
	lastAct int64
	acts    table[int64, ops.Act]
}

type none struct{}

type eventRow struct {
	id     int64
	event  convergo.Event
	digest convergo.Digest // of the aggregate
	lane   convergo.Lane
}

type laneSeq struct {
	lane convergo.Lane
	seq  int64
}

type laneDue struct {
	lane convergo.Lane
	at   int64
	id   int64
}

type laneBlocked struct {
	lane   convergo.Lane
	next   int64
	digest convergo.Digest
}

type blockedRow struct {
	aggregate convergo.Aggregate
	lane      convergo.Lane
	next      int64
	held      bool // by a dead letter, until a person acts
	lastError string
	since     int64
}

type placeInQueue struct {
	digest convergo.Digest
	seq    int64
}

type waitingRow struct {
	id       int64
	attempts int
}

type deadRow struct {
	id, seq  int64
	hold     bool
	attempts int
	error    string
	place    string
	at       int64
}

// discardedRow keeps on record who gave a dead event up.
type discardedRow struct {
	dead   deadRow
	by     string
	reason string
	at     int64
}

type laneRow struct {
	owner   string // "" when free
	token   int64
	expires int64
}

type consumerKey struct {
	consumer string
	digest   convergo.Digest // of a key or of an aggregate
}

type markRow struct {
	payload convergo.Digest
	at      int64
}

type inBlockedRow struct {
	aggregate convergo.Aggregate
	next      int64
	held      bool
}

type consumerDue struct {
	consumer string
	next     int64
	digest   convergo.Digest
}

type consumerPlace struct {
	consumer string
	digest   convergo.Digest
	place    int64
}

type inWaitingRow struct {
	event     convergo.Event
	attempts  int
	lastError string
	at        int64
}

type inDeadRow struct {
	id       string
	consumer string
	event    convergo.Event
	place    int64 // in its queue, to go back to
	hold     bool
	attempts int
	error    string
	where    string
	at       int64
	state    ops.State
	closedAt int64
	closedBy string
	reason   string
}

type callRow struct {
	call      outside.Call
	state     outside.State
	token     int64
	lease     int64 // end, when started
	attempts  int
	ambiguous bool
	next      int64
	result    []byte
	error     string
	created   int64
	updated   int64
}

type requestKey struct{ scope, key string }

func newState() *state {
	return &state{
		numbers:    newTable[string, int](strings.Compare),
		events:     newTable[int64, eventRow](cmp.Compare[int64]),
		eventKeys:  newTable[convergo.Digest, int64](compareDigests),
		pending:    newTable[laneSeq, int64](laneSeq.compare),
		delayed:    newTable[laneDue, none](laneDue.compare),
		blocked:    newTable[convergo.Digest, blockedRow](compareDigests),
		blockedDue: newTable[laneBlocked, none](laneBlocked.compare),
		waiting:    newTable[placeInQueue, waitingRow](placeInQueue.compare),
		dead:       newTable[int64, deadRow](cmp.Compare[int64]),
		discarded:  newTable[int64, discardedRow](cmp.Compare[int64]),
		lanes:      newTable[convergo.Lane, laneRow](cmp.Compare[convergo.Lane]),
		relays:     newTable[string, int64](strings.Compare),
		marks:      newTable[consumerKey, markRow](consumerKey.compare),
		versions:   newTable[consumerKey, int64](consumerKey.compare),
		inBlocked:  newTable[consumerKey, inBlockedRow](consumerKey.compare),
		inDue:      newTable[consumerDue, none](consumerDue.compare),
		inQueue:    newTable[consumerPlace, inWaitingRow](consumerPlace.compare),
		inPlaces:   newTable[consumerKey, int64](consumerKey.compare),
		inDead:     newTable[string, inDeadRow](strings.Compare),
		inBegun:    newTable[consumerName, begunRow](consumerName.compare),
		inTypes:    newTable[consumerName, int64](consumerName.compare),
		calls:      newTable[int64, callRow](cmp.Compare[int64]),
		callKeys:   newTable[convergo.Digest, int64](compareDigests),
		open:       newTable[int64, none](cmp.Compare[int64]),
		requests:   newTable[requestKey, idempotency.Record](requestKey.compare),
		acts:       newTable[int64, ops.Act](cmp.Compare[int64]),
	}
}

func compareDigests(a, b convergo.Digest) int { return bytes.Compare(a[:], b[:]) }

func (a laneSeq) compare(b laneSeq) int {
	return cmp.Or(cmp.Compare(a.lane, b.lane), cmp.Compare(a.seq, b.seq))
}

func (a laneDue) compare(b laneDue) int {
	return cmp.Or(cmp.Compare(a.lane, b.lane), cmp.Compare(a.at, b.at), cmp.Compare(a.id, b.id))
}

func (a laneBlocked) compare(b laneBlocked) int {
	return cmp.Or(cmp.Compare(a.lane, b.lane), cmp.Compare(a.next, b.next), compareDigests(a.digest, b.digest))
}

func (a placeInQueue) compare(b placeInQueue) int {
	return cmp.Or(compareDigests(a.digest, b.digest), cmp.Compare(a.seq, b.seq))
}

func (a consumerKey) compare(b consumerKey) int {
	return cmp.Or(strings.Compare(a.consumer, b.consumer), compareDigests(a.digest, b.digest))
}

func (a consumerDue) compare(b consumerDue) int {
	return cmp.Or(strings.Compare(a.consumer, b.consumer), cmp.Compare(a.next, b.next), compareDigests(a.digest, b.digest))
}

func (a consumerPlace) compare(b consumerPlace) int {
	return cmp.Or(strings.Compare(a.consumer, b.consumer), compareDigests(a.digest, b.digest), cmp.Compare(a.place, b.place))
}

func (a requestKey) compare(b requestKey) int {
	return cmp.Or(strings.Compare(a.scope, b.scope), strings.Compare(a.key, b.key))
}

// copyEvent shares nothing with e that its holder could change; times become what every store keeps.
func copyEvent(e convergo.Event) convergo.Event {
	e.Payload = slices.Clone(e.Payload)
	e.Headers = maps.Clone(e.Headers)
	e.CreatedAt = convergo.FromMicros(convergo.Micros(e.CreatedAt))
	e.DeliverAt = convergo.FromMicros(convergo.Micros(e.DeliverAt))
	return e
}

const maxErrorBytes = 2000

// clip cuts an error's text to what every store keeps, at a character's border.
func clip(text string) string {
	if len(text) <= maxErrorBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxErrorBytes], "")
}
