package rocketmq

import (
	"context"
	"fmt"
	"runtime/debug"
	"strconv"

	"github.com/convergo/convergo"
)

// checked is told that a broker asks about a half message.
func (b *Broker) checked(ctx context.Context, address string, req *command) {
	messages, err := readStored(req.body)
	if err != nil || len(messages) != 1 {
		b.cfg.Log.Error("a broker asks about a message that cannot be read", "broker", address, "error", err)
		return
	}
	b.mu.Lock()
	t := b.halves[messages[0].properties[propertyGroup]]
	b.mu.Unlock()
	if t == nil {
		b.cfg.Log.Warn("a broker asks about a message of a group that is not here", "broker", address,
			"group", messages[0].properties[propertyGroup])
		return
	}
	if err := t.answer(ctx, address, req, messages[0]); err != nil {
		b.cfg.Log.Warn("a broker's question about a transactional message is not answered; it will ask again", "broker", address,
			"event", messages[0].properties[convergo.HeaderKey], "error", err)
	}
}

// answer decides and tells the broker. Whatever goes wrong in it, the next question is answered.
func (t *Transactional) answer(ctx context.Context, address string, req *command, m stored) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	id := m.properties[propertyTransaction]
	if id == "" {
		return fmt.Errorf("message %s of the group %s has no transaction id: it was not sent from here", m.properties[propertyUniqueID], t.group)
	}
	ctx, cancel := context.WithTimeout(ctx, t.cfg.AnswerTimeout)
	defer cancel()
	select {
	case t.slots <- struct{}{}:
		defer func() { <-t.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	t.cfg.Probe.At("transaction.asked")
	h := halfMessage{address: address, topic: m.topic, key: convergo.Key(m.properties[convergo.HeaderKey]), id: id,
		uniqueID: m.properties[propertyUniqueID], asked: true}
	if h.inQueue, err = strconv.ParseInt(req.Fields["tranStateTableOffset"], 10, 64); err != nil {
		return err
	}
	if h.inLog, err = strconv.ParseInt(req.Fields["commitLogOffset"], 10, 64); err != nil {
		return err
	}
	stands, err := t.decisions.settle(ctx, id)
	if err != nil {
		return err
	}
	t.end(ctx, h, stands)
	return nil
}
