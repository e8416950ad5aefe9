package outbox

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync"
	"time"
)

// messageIDs makes UUIDs of version 7 (RFC 9562, section 5.7) that grow from call to call, also within a millisecond and
// when the clock steps back: 48 bits of milliseconds, 12 bits of the fraction of the millisecond (section 6.2, method 3),
// 62 random bits. The zero value is ready; it is safe for concurrent use.
type messageIDs struct {
	mu   sync.Mutex
	last uint64 // the 60 bits of time that were used last
}

func (m *messageIDs) next(now time.Time) string {
	var id [16]byte
	stamp := m.stamp(now)
	binary.BigEndian.PutUint64(id[:8], stamp>>12<<16|0x7000|stamp&0xfff)
	_, _ = rand.Read(id[8:]) // documented never to fail
	id[8] = id[8]&0x3f | 0x80

	var text [36]byte
	hex.Encode(text[:], id[:4])
	hex.Encode(text[9:], id[4:6])
	hex.Encode(text[14:], id[6:8])
	hex.Encode(text[19:], id[8:10])
	hex.Encode(text[24:], id[10:])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}

// stamp is now in units of 1/4096 ms (244 ns), or one more than the last when the clock has not moved past it.
func (m *messageIDs) stamp(now time.Time) uint64 {
	ns := max(now.UnixNano(), 0)
	ms, rest := uint64(ns)/1e6, uint64(ns)%1e6
	stamp := (ms<<12 | rest<<12/1e6) & (1<<60 - 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	if stamp <= m.last {
		stamp = m.last + 1
	}
	m.last = stamp
	return stamp
}
