package rocketmq

import (
	"slices"
	"testing"
	"time"
)

func queueOf(offsets ...int64) *queue {
	q := &queue{room: make(chan struct{}, 1), trusted: time.Now().Add(time.Hour), next: 100}
	for _, o := range offsets {
		q.ready = append(q.ready, stored{queueOffset: o})
	}
	return q
}

func offsets(flights []*flight) (all []int64) {
	for _, f := range flights {
		all = append(all, f.message.queueOffset)
	}
	return all
}

func TestOnlyTheContiguousPrefixIsTheConsumersPosition(t *testing.T) {
	q, s := queueOf(3, 5, 9), &source{}
	got, _ := q.take(s, 10, time.Now())
	for _, step := range []struct {
		finish int
		want   int64
	}{{1, 3}, {0, 9}, {2, 100}} {
		if q.finish(got[step.finish]); q.position() != step.want {
			t.Errorf("after %d is done with: position %d, want %d", got[step.finish].message.queueOffset, q.position(), step.want)
		}
	}
}

func TestAnUntrustedLockHandsOutNothing(t *testing.T) {
	q := queueOf(1)
	if got, _ := q.take(&source{}, 1, q.trusted); got != nil {
		t.Error("handed out when the lock's term was over")
	}
	q.leaving = true
	if got, _ := q.take(&source{}, 1, time.Now()); got != nil {
		t.Error("handed out although another instance shall have the queue")
	}
}

func TestWhatWasReturnedComesFirstAndOnlyAfterItsDelay(t *testing.T) {
	q, s, now := queueOf(1, 2, 3), &source{}, time.Now()
	got, _ := q.take(s, 2, now)
	got[0].holder, got[0].returned = nil, true
	q.suspended = now.Add(time.Second)
	if early, wait := q.take(s, 9, now); early != nil || wait != time.Second {
		t.Errorf("got %v and wait %s before the delay is over", offsets(early), wait)
	}
	again, _ := q.take(s, 9, now.Add(time.Second))
	if !slices.Equal(offsets(again), []int64{1, 3}) || again[0].times != 2 {
		t.Errorf("got %v, want 1 for the second time and then 3", offsets(again))
	}
}

func TestTwoReadersNeverHoldMessagesOfOneQueueTogether(t *testing.T) {
	q, one, two := queueOf(1, 2, 3), &source{}, &source{}
	got, _ := q.take(one, 2, time.Now())
	if other, _ := q.take(two, 1, time.Now()); other != nil {
		t.Errorf("the second reader got %v while the first one has some", offsets(other))
	}
	q.finish(got[0])
	q.finish(got[1])
	if other, _ := q.take(two, 1, time.Now()); !slices.Equal(offsets(other), []int64{3}) {
		t.Errorf("the second reader got %v, want 3", offsets(other))
	}
}

func TestQueuesAreDividedWithoutARest(t *testing.T) {
	parts := make([]partition, 8)
	for i := range parts {
		parts[i].Queue = i
	}
	for of := 1; of <= 10; of++ {
		var all []partition
		for index := range of {
			mine := share(parts, index, of)
			if n := len(mine); n < 8/of || n > 8/of+1 {
				t.Errorf("member %d of %d has %d queues", index, of, n)
			}
			all = append(all, mine...)
		}
		if !slices.Equal(all, parts) {
			t.Errorf("%d members share %v", of, all)
		}
	}
}

func FuzzAnythingFromABrokerIsReadWithoutAPanic(f *testing.F) {
	f.Add([]byte{0, 0, 0, 91, 0xDA, 0xA3, 0x20, 0xA7})
	f.Add(make([]byte, 200))
	f.Fuzz(func(t *testing.T, content []byte) {
		messages, err := readStored(content)
		if err != nil && messages != nil {
			t.Error("messages beside an error")
		}
		for _, m := range messages {
			_, _ = decode(m)
		}
	})
}
