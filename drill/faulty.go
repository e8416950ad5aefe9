package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
)

// Fault is one fault that was made to happen, a line of the journal that a drill keeps in the data folder.
type Fault struct {
	Kind     string    `json:"kind"`
	Consumer string    `json:"consumer,omitempty"` // whose handler failed
	Key      string    `json:"key,omitempty"`      // on which event; empty when the fault touched everything
	At       time.Time `json:"at"`
}

// Journal collects faults. It is written line by line, so that a SIGKILL loses none that happened.
type Journal struct {
	mu  sync.Mutex
	out io.Writer
}

// OpenJournal appends to the file. A line that a kill has cut is ended, so that the next one stands alone.
func OpenJournal(path string) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("fault journal: %w", err)
	}
	if err := endLine(f); err != nil {
		return nil, errors.Join(fmt.Errorf("fault journal: %w", err), f.Close())
	}
	return &Journal{out: f}, nil
}

func endLine(f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	last := []byte{0}
	if _, err := f.ReadAt(last, info.Size()-1); err != nil || last[0] == '\n' {
		return err
	}
	_, err = f.Write([]byte{'\n'})
	return err
}

// Note writes a fault down. A journal that cannot be written is an error: a drill must not undercount its faults.
func (j *Journal) Note(f Fault) error {
	line, err := json.Marshal(f)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	_, err = j.out.Write(append(line, '\n'))
	return err
}

// ReadJournal reads all faults of the file; a file that is not there has none, and a line cut by a kill is left out.
func ReadJournal(path string) ([]Fault, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var faults []Fault
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		cut := len(line) == 0 || (line[0] == '{' && line[len(line)-1] != '}')
		if cut {
			continue
		}
		var one Fault
		if err := json.Unmarshal(line, &one); err != nil {
			return faults, fmt.Errorf("fault journal %s: %w", path, err)
		}
		faults = append(faults, one)
	}
	return faults, nil
}

var errDrill = errors.New("the drill made this handler fail")

// Faulty makes a handler fail at random, half of the time before its work and half of the time after it, when its
// writes must be undone. The choice depends on the seed and on how many messages came before.
func Faulty[TX any](h inbox.Handler[TX], consumer string, rate float64, seed uint64, journal *Journal) inbox.Handler[TX] {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, seed>>1))
	return func(ctx context.Context, tx TX, event convergo.Event) error {
		mu.Lock()
		fail, after := random.Float64() < rate, random.IntN(2) == 1
		mu.Unlock()
		if !fail {
			return h(ctx, tx, event)
		}
		kind := FaultHandlerBefore
		if after {
			kind = FaultHandlerAfter
			if err := h(ctx, tx, event); err != nil {
				return err
			}
		}
		return errors.Join(errDrill, journal.Note(Fault{Kind: kind, Consumer: consumer, Key: string(event.Key), At: time.Now().UTC()}))
	}
}
