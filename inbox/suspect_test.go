package inbox_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/store/memory"
)

// One of a batch of a single aggregate kills. The hundred are tried one after another, each alone, and nobody waits but for what
// the killer takes, and for the back-off of one that fails.
func TestInnocentsBesideAMessageThatKillsFollowOneAnotherAtOnce(t *testing.T) {
	for _, killer := range []int{1, 50, 100} {
		bubble(t, func(t *testing.T) {
			const batch, trials, failing, backoff = 100, 3, 70, 7 * time.Second
			s := newStore()
			src := &counting{source: newSource(), times: map[convergo.Key]int{}}
			var want []string
			for n := 1; n <= batch; n++ {
				src.send(event("O-1", n))
				if n != killer {
					want = append(want, fmt.Sprint(n))
				}
			}
			var letters letters
			var failed, again, last time.Time
			begin, deaths := time.Now(), 0
			for done := false; !done; {
				c := inbox.New[*memory.Tx](s, s, src, inbox.Config{
					Consumer: "points", Redeliveries: 4, Trials: trials, OnDead: inbox.SkipEvent, Alert: letters.alert,
					Backoff: convergo.Backoff{Schedule: []time.Duration{backoff}, Jitter: convergo.NoJitter},
				})
				c.Handle("Moved", func(ctx context.Context, tx *memory.Tx, e convergo.Event) error {
					switch n := int(e.Version); {
					case n == killer:
						runtime.Goexit() // nothing recovers it, as nothing does a call of os.Exit
					case n == failing && deaths > 4 && failed.IsZero():
						failed = time.Now()
						return errWeather
					case n == failing:
						again = time.Now()
					}
					last = time.Now()
					return s.effect(ctx, tx, e)
				})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- c.Run(ctx) }()
				select {
				case <-ended:
					deaths++
				case <-time.After(10 * time.Minute):
					done = true
				}
				cancel()
				src.redeliver()
				settle()
			}
			same(t, "deaths", deaths, 4+trials)
			same(t, "applied", s.log("O-1"), fmt.Sprint(want))
			same(t, "dead letters", len(letters.all()), 1)
			same(t, "unacknowledged", src.unacked(), 0)
			most := trials*30*time.Second + 5*time.Second // each death costs the time of a trial
			if killer < failing {
				same(t, "back-off of the one that failed", again.Sub(failed) >= backoff, true)
				most += backoff
			}
			if took := last.Sub(begin); took > most {
				t.Errorf("killer %d: the last one was applied after %v, want %v at most", killer, took, most)
			}
		})
	}
}

// Older versions write a suspect with one attempt before anything is tried. It has all its trials here.
func TestASuspectOfAnOlderVersionHasAllItsTrials(t *testing.T) {
	for _, attempts := range []int{0, 1} {
		for _, kills := range []bool{false, true} {
			bubble(t, func(t *testing.T) {
				s := newStore()
				_ = s.Update(t.Context(), func(ctx context.Context, tx *memory.Tx) error {
					return s.Fail(ctx, tx, "points", inbox.Failure{
						Event: event("O-1", 1), Attempts: attempts, Place: "process", Next: time.Now(),
						Error: "process: delivered 11 times and never settled: it may kill the process, so it is tried alone",
					}, time.Now())
				})
				deaths := lives(t, s, newSource(), inbox.Config{Trials: 1}, 5, func() {}, func(convergo.Event) bool { return kills })
				dead := len(open(t, s))
				if want := map[bool]string{false: "0 [1] 0", true: "1 [] 1"}[kills]; want != fmt.Sprint(deaths, s.log("O-1"), dead) {
					t.Errorf("attempts %d: %d deaths, applied %s, %d dead letters, want %s", attempts, deaths, s.log("O-1"), dead, want)
				}
			})
		}
	}
}
