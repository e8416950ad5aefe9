package postgres

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"
)

// newID is a UUID of version 7 (RFC 9562, section 5.7): 48 bits of milliseconds, then random bits.
func newID(now time.Time) string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // documented never to fail
	binary.BigEndian.PutUint64(id[:8], uint64(max(now.UnixMilli(), 0))<<16|uint64(binary.BigEndian.Uint16(id[6:8])))
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}
