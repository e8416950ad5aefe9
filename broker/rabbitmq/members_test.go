package rabbitmq

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/testlog"
	"github.com/convergo/convergo/testserver"
)

// reachable sets whether the server can reach a queue: what it says of one that has crashed is what it says of one whose node is away.
func reachable(t *testing.T, r *testserver.RabbitMQ, queue string, yes bool) {
	t.Helper()
	state := map[bool]string{true: "live", false: "crashed"}[yes]
	_, err := r.Control("eval", fmt.Sprintf(`rabbit_misc:execute_mnesia_transaction(fun() ->
		rabbit_amqqueue:update(rabbit_misc:r(<<"/">>, queue, <<%q>>), fun(Q) -> amqqueue:set_state(Q, %s) end) end), ok.`, queue, state))
	must(t, err)
}

// logged waits for words in a log.
func logged(t *testing.T, log *testlog.Lines, words string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(log.String(), words); {
		if time.Now().After(deadline) {
			t.Fatalf("the log does not say %q: %s", words, log.String())
		}
		<-time.After(5 * time.Millisecond)
	}
}

// In a cluster the queue of the members is on one node. When that is away a consumer goes on, and another instance of it can start;
// when it is back they share the partitions.
func TestConsumersGoOnWhileTheQueueOfTheirMembersIsAway(t *testing.T) {
	r := shared(t)
	cfg := config(r)
	log := &testlog.Lines{}
	cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	first := open(t, cfg)
	one := subscribe(t, first, "payment")
	queue := first.beside("payment", membersQueue)
	keeper := channel(t, r) // the queue goes with its last reader
	_, err := keeper.Consume(queue, "keeper", true, false, false, false, nil)
	must(t, err)

	reachable(t, r, queue, false)
	logged(t, log, "partitions are not shared out")
	second := open(t, cfg)
	two := subscribe(t, second, "payment")
	var events []convergo.Event
	for i := range 20 {
		events = append(events, paid(fmt.Sprint("A-", i), 1))
	}
	publish(t, second, events...)
	for _, d := range fetch(t, one, len(events)) {
		must(t, d.Ack(t.Context()))
	}

	reachable(t, r, queue, true)
	must(t, keeper.Cancel("keeper", false))
	for _, words := range []string{"partitions are shared out again", "partitions go to other instances"} {
		logged(t, log, words)
	}
	for i := range events {
		events[i] = paid(events[i].Aggregate.ID, 2)
	}
	publish(t, first, events...)
	fetch(t, two, 1)
}
