package outside_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/store/memory"
)

func TestACallIsMadeAfterTheCommitAndNeverAfterARollback(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		calls, _ := s.open(outside.Config{}, s.handler())
		undo := errors.New("undo")
		err := s.Calls.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error {
			fresh, err := calls.Schedule(ctx, tx, refund)
			s.want("schedule", fmt.Sprint(fresh, err), "true <nil>")
			return undo
		})
		s.want("rolled back", errors.Is(err, undo), true)
		pass(time.Minute)
		s.want("heard", s.channel.heard(), "")
		s.schedule(calls, refund, refund)
		synctest.Wait() // at once, by the wake-up
		s.want("heard", s.channel.heard(), "do RF-1")
		s.want("recorded", s.number("done RF-1"), 1)
		s.want("stats", calls.Stats(), outside.Stats{Claimed: 1, Made: 1, Done: 1})
	})
}

func TestNoTransactionIsOpenWhileTheOtherSideIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		h := s.handler()
		do := h.Do
		h.Do = func(ctx context.Context, c outside.Claimed) ([]byte, error) {
			if err := s.Calls.Update(ctx, func(_ context.Context, tx *memory.Tx) error { tx.Add("meanwhile", 1); return nil }); err != nil {
				return nil, err
			}
			return do(ctx, c)
		}
		calls, _ := s.open(outside.Config{}, h)
		s.schedule(calls, refund)
		synctest.Wait()
		s.want("meanwhile", s.number("meanwhile"), 1)
		s.want("recorded", s.number("done RF-1"), 1)
	})
}

// domain.md row 2: a time-out is asked about, and repeated only with the same key.
func TestReport02AnAmbiguousCallIsAskedAboutAndRepeatedWithTheSameKey(t *testing.T) {
	for name, c := range map[string]struct {
		arrives bool
		heard   string
	}{
		"it had arrived":     {true, "do RF-1, ask RF-1"},
		"it had not arrived": {false, "do RF-1, ask RF-1, do RF-1"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *shop) {
				once := func(_ string, attempt int) error {
					if attempt == 1 {
						return errTimeout
					}
					return nil
				}
				if c.arrives {
					s.channel.do = once
				} else {
					s.channel.before = once
				}
				calls, _ := s.open(outside.Config{}, s.handler())
				s.schedule(calls, refund)
				pass(time.Minute)
				s.want("heard", s.channel.heard(), c.heard)
				s.want("effects", s.channel.effects["RF-1"], 1)
				s.want("recorded", s.number("done RF-1"), 1)
			})
		})
	}
}

// domain.md row 3: a definite failure ends this key, so that a new attempt can have a new one.
func TestReport03ADefiniteFailureIsRefusedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		s.channel.before = func(string, int) error { return convergo.Permanent(errors.New("card closed")) }
		calls, _ := s.open(outside.Config{}, s.handler())
		s.schedule(calls, refund)
		pass(time.Hour)
		s.want("heard", s.channel.heard(), "do RF-1")
		s.want("refused", s.number("refused RF-1"), 1)
		s.want("done", s.number("done RF-1"), 0)
		s.want("stats", calls.Stats(), outside.Stats{Claimed: 1, Made: 1, Refused: 1})
	})
}

// domain.md row 5: age never decides an outcome.
func TestReport05AgeDecidesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		s.channel.before = func(string, int) error { return errTimeout }
		s.channel.ask = func(string) error { return convergo.Permanent(errors.New("403")) } // no answer about the call either
		calls, _ := s.open(outside.Config{Poll: time.Hour}, s.handler())
		s.schedule(calls, refund)
		pass(30 * 24 * time.Hour)
		s.want("decided", s.number("refused RF-1")+s.number("done RF-1"), 0)
		s.want("repeated without an answer", s.channel.tries["RF-1"], 1)
		s.channel.mu.Lock()
		s.channel.ask, s.channel.before = nil, nil
		s.channel.mu.Unlock()
		pass(2 * time.Hour)
		s.want("done", s.number("done RF-1"), 1)
	})
}

func TestWhatSurelyNeverLeftIsNotAskedAbout(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		s.channel.before = func(_ string, attempt int) error {
			switch attempt {
			case 1:
				return outside.NotSent(convergo.Unreachable(errors.New("connection refused")))
			case 2:
				return convergo.Unreachable(errors.New("connection reset")) // it may have arrived
			}
			return nil
		}
		calls, _ := s.open(outside.Config{}, s.handler())
		s.schedule(calls, refund)
		pass(time.Minute)
		s.want("heard", s.channel.heard(), "do RF-1, do RF-1, ask RF-1, do RF-1")
		s.want("done", s.number("done RF-1"), 1)
	})
}

func TestNotSentDoesNotClearAnEarlierDoubt(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		s.channel.before = func(_ string, attempt int) error {
			return []error{errTimeout, outside.NotSent(errTimeout), nil}[attempt-1]
		}
		calls, _ := s.open(outside.Config{}, s.handler())
		s.schedule(calls, refund)
		pass(time.Minute)
		s.want("heard", s.channel.heard(), "do RF-1, ask RF-1, do RF-1, ask RF-1, do RF-1")
	})
}

func TestOneWhoCannotBeAskedIsCalledAgainWithTheSameKey(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		s.channel.do = func(_ string, attempt int) error {
			if attempt < 3 {
				return errTimeout
			}
			return nil
		}
		h := s.handler()
		h.Query = nil
		calls, _ := s.open(outside.Config{}, h)
		s.schedule(calls, refund)
		pass(time.Minute)
		s.want("heard", s.channel.heard(), "do RF-1, do RF-1, do RF-1")
		s.want("effects", s.channel.effects["RF-1"], 1)
		s.want("done", s.number("done RF-1"), 1)
	})
}

// Facts 3.1: the worker dies between any two steps; another instance takes the call over when the lease has expired.
func TestACrashBetweenAnyTwoStepsLeavesOneEffectAndOneRecord(t *testing.T) {
	for point, heard := range map[string]string{
		"outside.reserved": "ask RF-1, do RF-1", "outside.called": "do RF-1, ask RF-1", "outside.finished": "do RF-1",
		"in do": "do RF-1, ask RF-1", "in done": "do RF-1, ask RF-1",
	} {
		t.Run(point, func(t *testing.T) {
			bubble(t, func(t *testing.T, s *shop) {
				var dead atomic.Bool
				die := func(at string) {
					if at == point && dead.CompareAndSwap(false, true) {
						runtime.Goexit()
					}
				}
				h := s.handler()
				do, done := h.Do, h.Done
				h.Do = func(ctx context.Context, c outside.Claimed) ([]byte, error) {
					result, err := do(ctx, c)
					die("in do")
					return result, err
				}
				h.Done = func(ctx context.Context, tx *memory.Tx, c outside.Claimed, result []byte) error {
					err := done(ctx, tx, c, result)
					die("in done")
					return err
				}
				first, stop := s.open(outside.Config{Lease: 10 * time.Second, Probe: die}, h)
				s.schedule(first, refund)
				synctest.Wait()
				stop()
				s.want("died", dead.Load(), true)
				second, _ := s.open(outside.Config{Lease: 10 * time.Second}, h)
				pass(9 * time.Second)
				s.want("taken over before its lease ended", second.Stats().Claimed, 0)
				pass(4 * time.Second)
				s.want("heard", s.channel.heard(), heard)
				s.want("effects", s.channel.effects["RF-1"], 1)
				s.want("recorded", s.number("done RF-1"), 1)
			})
		})
	}
}

// domain.md rows 27 and 34: an attempt with an unknown outcome has one owner, and the result is recorded by one.
func TestReport27ASlowOwnerLosesItsCallAndItsLateResultIsDropped(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		release := make(chan struct{})
		h := s.handler()
		do := h.Do
		var deadline time.Duration
		h.Do = func(ctx context.Context, c outside.Claimed) ([]byte, error) {
			until, _ := ctx.Deadline()
			deadline = time.Until(until)
			result, err := do(ctx, c)
			<-release // it does not heed its deadline
			return result, err
		}
		first, _ := s.open(outside.Config{Name: "first", Workers: 1, Lease: 8 * time.Second}, h)
		s.schedule(first, refund)
		synctest.Wait()
		s.want("its time ends before its lease", deadline, 6*time.Second)
		second, _ := s.open(outside.Config{Name: "second", Lease: 8 * time.Second}, s.handler())
		pass(11 * time.Second)
		s.want("the second", second.Stats(), outside.Stats{Claimed: 1, TakenOver: 1, Asked: 1, Done: 1})
		close(release)
		synctest.Wait()
		s.want("the first", first.Stats(), outside.Stats{Claimed: 1, Made: 1, Lost: 1})
		s.want("heard", s.channel.heard(), "do RF-1, ask RF-1")
		s.want("recorded", s.number("done RF-1"), 1)
	})
}

// The process was frozen between the claim and the call: it does not call any more.
func TestACallWhoseTimeIsOverBeforeItBeganIsNotMade(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		frozen := false
		calls, _ := s.open(outside.Config{Workers: 1, Lease: 8 * time.Second, Probe: func(point string) {
			if point == "outside.reserved" && !frozen {
				frozen = true
				<-time.After(7 * time.Second)
			}
		}}, s.handler())
		s.schedule(calls, refund)
		pass(7 * time.Second)
		s.want("heard", s.channel.heard(), "")
		pass(time.Minute)
		s.want("later", s.channel.heard(), "do RF-1")
		s.want("retried", calls.Stats().Retried, 1)
	})
}

func TestTwoInstancesMakeACallOnce(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		a, _ := s.open(outside.Config{}, s.handler())
		b, _ := s.open(outside.Config{}, s.handler())
		var list []outside.Call
		for i := range 50 {
			list = append(list, outside.Call{Kind: "refund", Key: convergo.Key(fmt.Sprint("RF-", i))})
		}
		s.schedule(a, list...)
		b.Wake()
		pass(time.Minute)
		s.want("made", a.Stats().Made+b.Stats().Made, 50)
		s.want("done", a.Stats().Done+b.Stats().Done, 50)
	})
}

func TestADoneThatFailsIsRolledBackAndTheCallIsAskedForAgain(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		s.doneFail.Store(2)
		calls, _ := s.open(outside.Config{}, s.handler())
		s.schedule(calls, refund)
		pass(time.Minute)
		s.want("heard", s.channel.heard(), "do RF-1, ask RF-1, ask RF-1")
		s.want("recorded", s.number("done RF-1"), 1)
		s.want("effects", s.channel.effects["RF-1"], 1)
	})
}

func TestAPanicIsAnAmbiguousFailureWithThePlace(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		h := s.handler()
		do, done := h.Do, h.Done
		panics := map[string]bool{"do": true, "done": true}
		h.Do = func(ctx context.Context, c outside.Claimed) ([]byte, error) {
			result, err := do(ctx, c)
			if panics["do"] {
				panics["do"] = false
				panic("boom")
			}
			return result, err
		}
		h.Done = func(ctx context.Context, tx *memory.Tx, c outside.Claimed, result []byte) error {
			if err := done(ctx, tx, c, result); err != nil {
				return err
			}
			if panics["done"] {
				panics["done"] = false
				panic("boom")
			}
			return nil
		}
		calls, _ := s.open(outside.Config{}, h)
		s.schedule(calls, refund)
		pass(time.Minute)
		s.want("heard", s.channel.heard(), "do RF-1, ask RF-1, ask RF-1")
		s.want("recorded", s.number("done RF-1"), 1)
	})
}

func TestAnOutcomeThatCannotBeRecordedIsAskedForWhenTheStoreIsBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		s.channel.do = func(string, int) error {
			s.set(func(s *shop) { s.down = errors.New("connection refused") })
			return nil
		}
		calls, _ := s.open(outside.Config{Lease: 10 * time.Second}, s.handler())
		s.schedule(calls, refund)
		pass(5 * time.Second)
		s.want("recorded", s.number("done RF-1"), 0)
		s.set(func(s *shop) { s.down = nil })
		pass(time.Minute)
		s.want("heard", s.channel.heard(), "do RF-1, ask RF-1")
		s.want("recorded", s.number("done RF-1"), 1)
	})
}

func TestGivingUpIsOnlyDoneWhereAskedForAndNeverAgainstAnAnswer(t *testing.T) {
	t.Run("no trace", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *shop) {
			s.channel.before = func(string, int) error { return errTimeout }
			calls, _ := s.open(outside.Config{MaxAttempts: 2}, s.handler())
			s.schedule(calls, refund)
			pass(time.Hour)
			s.want("heard", s.channel.heard(), "do RF-1, ask RF-1, do RF-1, ask RF-1")
			s.want("given up", s.number("given up RF-1"), 1)
		})
	})
	t.Run("it is known", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *shop) {
			s.channel.do = func(string, int) error { return errTimeout }
			calls, _ := s.open(outside.Config{MaxAttempts: 1}, s.handler())
			s.schedule(calls, refund)
			pass(time.Hour)
			s.want("done", s.number("done RF-1"), 1)
			s.want("given up", s.number("given up RF-1"), 0)
		})
	})
	t.Run("cannot be asked", func(t *testing.T) {
		bubble(t, func(t *testing.T, s *shop) {
			s.channel.before = func(string, int) error { return errTimeout }
			h := s.handler()
			h.Query = nil
			calls, _ := s.open(outside.Config{MaxAttempts: 3}, h)
			s.schedule(calls, refund)
			pass(time.Hour)
			s.want("heard", s.channel.heard(), "do RF-1, do RF-1, do RF-1")
			s.want("given up", s.number("given up RF-1"), 1)
		})
	})
}

func TestStoppingFinishesTheCallsInFlight(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		h := s.handler()
		do, goOn := h.Do, make(chan struct{})
		h.Do = func(ctx context.Context, c outside.Claimed) ([]byte, error) {
			select {
			case <-goOn:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			return do(ctx, c)
		}
		calls, stop := s.open(outside.Config{}, h)
		s.schedule(calls, refund)
		synctest.Wait()
		s.want("running", calls.Stats().Running, 1)
		go func() {
			pass(time.Second)
			close(goOn)
		}()
		stop()
		s.want("recorded", s.number("done RF-1"), 1)
		s.want("running", calls.Stats().Running, 0)
	})
}

func TestIdleCallsAskTheStoreAtMostOnceASecond(t *testing.T) {
	bubble(t, func(t *testing.T, s *shop) {
		s.open(outside.Config{}, s.handler())
		pass(10 * time.Minute)
		if s.claims > 600 {
			t.Errorf("%d claims in 600 idle seconds", s.claims)
		}
	})
}

func TestInvalidCallsAreRefusedByName(t *testing.T) {
	s := newShop(t)
	calls := outside.New[*memory.Tx](s, outside.Config{})
	for want, call := range map[string]outside.Call{
		"key is empty":      {Kind: "refund"},
		"key is too long":   {Kind: "refund", Key: convergo.Key(strings.Repeat("k", 256))},
		"key has leading":   {Kind: "refund", Key: " k"},
		"kind \"\" is not":  {Key: "k"},
		"group has control": {Kind: "refund", Key: "k", Group: "a\x00b"},
		"payload too long":  {Kind: "refund", Key: "k", Payload: make([]byte, convergo.MaxPayloadBytes+1)},
	} {
		err := s.Calls.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error {
			_, err := calls.Schedule(ctx, tx, call)
			if !errors.Is(err, convergo.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", want, err)
			}
			return nil
		})
		s.want(want, err, nil)
	}
}
