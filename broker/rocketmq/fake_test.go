package rocketmq

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
)

// fake is a name server and a broker in one, which says what a test wants it to.
type fake struct {
	address string
	mu      sync.Mutex
	asked   []*command
	answer  func(req *command) *command
}

// newFake answers routes itself, with the given number of queues for each topic; everything else by answer.
func newFake(t *testing.T, queues int, answer func(req *command) *command) *fake {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{address: l.Addr().String()}
	f.answer = func(req *command) *command {
		if req.Code != codeRoute {
			return answer(req)
		}
		number := string(rune('0' + queues))
		return &command{body: []byte(`{"queueDatas":[{"brokerName":"a","readQueueNums":` + number + `,"writeQueueNums":` + number +
			`,"perm":6}],"brokerDatas":[{"brokerName":"a","brokerAddrs":{"0":"` + f.address + `"}}]}`)}
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go f.serve(conn)
		}
	}()
	return f
}

func (f *fake) serve(conn net.Conn) {
	for {
		req, err := readCommand(conn)
		if err != nil {
			return
		}
		f.mu.Lock()
		f.asked = append(f.asked, req)
		f.mu.Unlock()
		answer := f.answer(req)
		if answer == nil {
			continue
		}
		answer.Opaque, answer.Flag = req.Opaque, flagAnswer
		frame, err := answer.frame()
		if err != nil {
			return
		}
		if _, err := conn.Write(frame); err != nil {
			return
		}
	}
}

func (f *fake) requests(code int) (all []*command) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, req := range f.asked {
		if req.Code == code {
			all = append(all, req)
		}
	}
	return all
}

func TestAConfirmationWithoutDiskOrSlaveIsNone(t *testing.T) {
	for name, code := range map[string]int{"flush": answerFlushTimeout, "no slave": answerNoSlave, "slave": answerSlaveTimeout, "busy": answerBusy} {
		f := newFake(t, 8, func(*command) *command { return &command{Code: code, Remark: name} })
		b := open(t, Config{NameServers: []string{f.address}})
		for i, err := range b.Publish(t.Context(), []convergo.Event{paid("O-1", 1), paid("O-1", 2)}) {
			if err == nil || convergo.VerdictOf(err) != convergo.Outage {
				t.Errorf("%s, event %d: error %v with verdict %s, want an outage", name, i, err, convergo.VerdictOf(err))
			}
		}
		if n := len(f.requests(codeSend)) + len(f.requests(codeSendBatch)); n != 1 {
			t.Errorf("%s: sent %d times: the relay sends again, not the client", name, n)
		}
	}
}

func TestOneMessageThatTheBrokerRefusesTakesNoOtherAggregateWithIt(t *testing.T) {
	f := newFake(t, 1, func(req *command) *command {
		if req.Code == codeSendBatch || strings.Contains(req.Fields["i"], "O-2:v1") {
			return &command{Code: answerIllegalMessage, Remark: "msg body length limit 10"}
		}
		return &command{}
	})
	b := open(t, Config{NameServers: []string{f.address}, Queues: 1})
	errs := b.Publish(t.Context(), []convergo.Event{paid("O-1", 1), paid("O-2", 1), paid("O-1", 2), paid("O-2", 2)})
	if errs[0] != nil || errs[2] != nil {
		t.Errorf("the others failed too: %v, %v", errs[0], errs[2])
	}
	if convergo.VerdictOf(errs[1]) != convergo.Park {
		t.Errorf("the refused one: %v, want a permanent error", errs[1])
	}
	if errs[3] == nil || convergo.VerdictOf(errs[3]) == convergo.Park {
		t.Errorf("the one after it: %v, want an error that does not blame it", errs[3])
	}
}

func TestAnUnansweredCallIsAnOutageAfterTheTimeout(t *testing.T) {
	f := newFake(t, 8, func(*command) *command { return nil })
	b := open(t, Config{NameServers: []string{f.address}, Timeout: 50 * time.Millisecond})
	if err := b.Publish(t.Context(), []convergo.Event{paid("O-1", 1)})[0]; convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("error %v, want an outage", err)
	}
}

func TestATopicWithAnotherNumberOfQueuesIsRefusedWithTheRemedy(t *testing.T) {
	for _, queues := range []int{4, 9} {
		f := newFake(t, queues, func(*command) *command { return &command{} })
		b := open(t, Config{NameServers: []string{f.address}})
		_, err := b.Subscribe(t.Context(), "points", []convergo.Subject{{Topic: "order"}})
		if !errors.Is(err, errQueues) || !strings.Contains(err.Error(), "and partitions (Config.Queues) is") {
			t.Errorf("%d queues: %v, want an error with the remedy", queues, err)
		}
		if err := b.Publish(t.Context(), []convergo.Event{paid("O-1", 1)})[0]; convergo.VerdictOf(err) != convergo.Outage {
			t.Errorf("%d queues: publish: %v, want an error that spends no attempt", queues, err)
		}
	}
}

func TestABrokerThatLostDataIsReadFromItsBeginning(t *testing.T) {
	// The broker proposes its end, 5: what was sent again since the loss would be skipped.
	f := newFake(t, 1, func(req *command) *command {
		switch req.Code {
		case codeMinOffset:
			return &command{Fields: fields("offset", 2)}
		case codePull:
			return &command{Code: answerOffsetMoved, Fields: fields("nextBeginOffset", 5, "maxOffset", 5, "minOffset", 2)}
		}
		return &command{}
	})
	b := open(t, Config{NameServers: []string{f.address}, Queues: 1})
	m := newMember(b, "points")
	q := &queue{partition: partition{Topic: "convergo-order", Broker: "a"}, member: m}
	got, err := q.read(t.Context(), 100)
	if err != nil || got.next != 2 || len(got.messages) != 0 {
		t.Errorf("goes on at %d (%v), want 2", got.next, err)
	}
}

func TestAServerThatSpeaksAnotherProtocolIsAnOutageThatSaysSo(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		}
	}()
	_, err = Open(t.Context(), Config{NameServers: []string{l.Addr().String()}})
	if convergo.VerdictOf(err) != convergo.Outage || !strings.Contains(err.Error(), "does not speak RocketMQ's protocol") {
		t.Errorf("error %v, want an outage that names the reason", err)
	}
}

// Each event waited for them by itself: a batch took longer than its publish may.
func TestAPublishAsksNameServersThatDoNotAnswerOncePerTopic(t *testing.T) {
	var silent atomic.Bool
	f := newFake(t, 8, func(*command) *command { return &command{} })
	answer := f.answer
	f.answer = func(req *command) *command {
		if silent.Load() && req.Code == codeRoute {
			return nil
		}
		return answer(req)
	}
	b := open(t, Config{NameServers: []string{f.address}, Timeout: 100 * time.Millisecond})
	if err := b.Publish(t.Context(), []convergo.Event{paid("O-1", 1)})[0]; err != nil {
		t.Fatal(err)
	}
	silent.Store(true)
	b.stale(b.topicName("order"))
	before := len(f.requests(codeRoute))
	var events []convergo.Event
	for i := range 50 {
		events = append(events, paid(fmt.Sprint("O-", i), 2))
	}
	if err := errors.Join(b.Publish(t.Context(), events)...); err != nil {
		t.Errorf("the broker is there, and where it is was known: %v", err)
	}
	if n := len(f.requests(codeRoute)) - before; n != 1 {
		t.Errorf("asked %d times", n)
	}
}
