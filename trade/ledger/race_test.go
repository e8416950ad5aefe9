package ledger_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/convergo/convergo/trade/ledger"
	"github.com/convergo/convergo/trade/tradetest"
)

// The chain has one end, whoever appends to it: journals of many orders at once, from two processes.
func TestTheChainStaysWholeWhateverIsAppendedAtOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		twin := &shop{Bench: s.Twin()}
		twin.told.Store(1_000_000)
		const orders = 32
		var all sync.WaitGroup
		for i := range orders {
			for n, h := range sale(fmt.Sprintf("O-%d", i)) {
				from := s
				if (i+n)%2 == 1 {
					from = twin
				}
				all.Go(func() {
					if err := from.deliver(h); err != nil {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
		if c := s.verify(t); !c.Intact || c.Journals != 3*orders {
			t.Errorf("%+v", c)
		}
		if b := s.trial(t); !b.Balanced || s.balance(ledger.Suspense) != 0 {
			t.Errorf("%+v", b)
		}
	})
}

// A journal that another process wrote after this one had looked is found when the end of the chain is taken: no attempt is spent,
// and the chain has no hole.
func TestAJournalThatAnotherProcessWroteMeanwhileIsTheJournal(t *testing.T) {
	databases.EachServer(t, func(t *testing.T, db tradetest.Database) {
		s := open(t, db)
		first := sale("O-1")[0]
		again := s.Event(first.eventType, "O-1", 1, first.payload)
		if err := s.Meanwhile(again, "FROM journal", func() { s.tell(t, sale("O-1")) }); err != nil {
			t.Error(err)
		}
		s.tell(t, sale("O-2"))
		if c := s.verify(t); !c.Intact || c.Journals != 6 {
			t.Errorf("%+v", c)
		}
	})
}
