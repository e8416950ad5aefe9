package rocketmq

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"

	"github.com/convergo/convergo"
)

// Apache's own client for Go is the judge of what we say to the servers: it reads what we wrote, and we read what it wrote.
func TestApachesClientReadsOurMessagesAndWeReadIts(t *testing.T) {
	t.Parallel()
	rlog.SetLogLevel("fatal")
	cfg := configOf(shared(t), prefix())
	b := open(t, cfg)
	one, many := paid("O-1", 1), spread(2)
	publish(t, b, one)
	publish(t, b, many...) // in batches
	instance := fmt.Sprint("judge-", os.Getpid(), "-", cfg.Prefix)

	resolver := primitive.NewPassthroughResolver(cfg.NameServers)
	theirs, err := consumer.NewPushConsumer(consumer.WithNsResolver(resolver), consumer.WithGroupName(cfg.Prefix+"judge"), consumer.WithInstance(instance),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *primitive.MessageExt, 1000)
	err = theirs.Subscribe(b.topicName("order"), consumer.MessageSelector{Type: consumer.TAG, Expression: "OrderPaid"},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, m := range messages {
				got <- m
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		t.Fatal(err)
	}
	if err := theirs.Start(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]*primitive.MessageExt{}
	eventually(t, "Apache's consumer has all messages", func() bool {
		for {
			select {
			case m := <-got:
				seen[m.GetProperty(convergo.HeaderKey)] = m
			default:
				return len(seen) == 65
			}
		}
	})
	if err := theirs.Shutdown(); err != nil {
		t.Error(err)
	}
	m := seen[string(one.Key)]
	if string(m.Body) != string(one.Payload) || m.GetTags() != one.Type || m.GetKeys() != string(one.Key) || m.MsgId != one.MessageID {
		t.Errorf("got %v", m)
	}

	sender, err := producer.NewDefaultProducer(producer.WithNsResolver(resolver), producer.WithGroupName(cfg.Prefix+"sender"),
		producer.WithInstanceName(instance+"-sender"), producer.WithRetry(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := sender.Start(); err != nil {
		t.Fatal(err)
	}
	e := paid("O-9", 3)
	e.Payload = make([]byte, 64*1024) // long enough for it to be compressed
	out := primitive.NewMessage(b.topicName("order"), e.Payload).WithTag(e.Type).WithKeys([]string{string(e.Key)})
	for name, value := range e.Wire() {
		out.WithProperty(name, value)
	}
	if _, err := sender.SendSync(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if err := sender.Shutdown(); err != nil {
		t.Error(err)
	}
	for _, d := range fetch(t, subscribe(t, b, "points"), 66) {
		if d.Malformed != nil {
			t.Errorf("malformed: %v", d.Malformed)
		}
		if d.Event.Key == e.Key && string(d.Event.Payload) != string(e.Payload) {
			t.Errorf("the payload of %d bytes is not what was sent", len(d.Event.Payload))
		}
	}
}
