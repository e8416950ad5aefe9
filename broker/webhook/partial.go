package webhook

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"github.com/convergo/convergo"
)

// partial is which endpoints have an event that others have not. It forgets the oldest when it is full.
type partial struct {
	mu    sync.Mutex
	most  int
	have  map[convergo.Digest]map[string]bool
	order []convergo.Digest
}

// identity tells events apart as a consumer does, by topic, key and payload, and by place: what is known of an event holds for all its
// attempts, and not for a replay or a redrive, which must arrive.
func identity(e convergo.Event) convergo.Digest {
	h := sha256.New()
	key, payload := e.Key.Digest(), sha256.Sum256(e.Payload)
	h.Write(key[:])
	h.Write(payload[:])
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(e.Position)))
	h.Write([]byte(e.Topic))
	return convergo.Digest(h.Sum(nil))
}

func (m *partial) of(e convergo.Event) map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.have) == 0 {
		return nil
	}
	return m.have[identity(e)]
}

func (m *partial) note(e convergo.Event, done map[string]bool) {
	if len(done) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	id := identity(e)
	if m.have[id] == nil {
		m.order = append(m.order, id)
	}
	m.have[id] = done
	for len(m.order) > m.most {
		delete(m.have, m.order[0])
		m.order = m.order[1:]
	}
}

func (m *partial) forget(e convergo.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.have) == 0 {
		return
	}
	id := identity(e)
	if m.have[id] == nil {
		return
	}
	delete(m.have, id)
	for i, o := range m.order {
		if o == id {
			m.order = append(m.order[:i], m.order[i+1:]...)
			break
		}
	}
}
