package main

import (
	"context"
	"log/slog"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

// roomy is a broker that tells how large an event it takes.
type roomy interface {
	Room(ctx context.Context, topics []string) (relay.Room, error)
}

// wholeEvent is the room in which every event fits that an outbox takes: its payload, its headers, and what is around each of them.
const wholeEvent = convergo.MaxPayloadBytes + convergo.MaxHeaderBytes + 32*convergo.MaxHeaders

// room is how many bytes an event's payload and headers may have together for the broker to take it; 0 when it takes all that an outbox
// does, or does not tell.
func (c *connected) room(ctx context.Context, topics []string) (most int, setting string, err error) {
	b, ok := c.broker.(roomy)
	if !ok {
		return 0, "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	room, err := b.Room(ctx, topics)
	if err != nil || room.Payload >= wholeEvent {
		return 0, "", err
	}
	return max(room.Payload, 1), room.Setting, nil
}

const (
	unseenRoom = "how large an event the broker takes cannot be seen; what it refuses becomes a dead event"
	largerDie  = "larger events become dead events; let what writes them refuse them (in Go: outbox.Config.MaxPayload)" // those of a relay
)

// warnRoom logs, and returns, what room finds. larger is what becomes of larger events.
func (c *connected) warnRoom(ctx context.Context, topics []string, larger string, log *slog.Logger) (most int) {
	most, setting, err := c.room(ctx, topics)
	if err != nil {
		log.Warn(unseenRoom, "error", err)
	}
	if most > 0 {
		log.Warn("the broker takes less than an outbox: "+larger, "largest", most, "setting", setting, "want", wholeEvent+relay.FieldBytes)
	}
	return most
}

// room says how large an event may be.
func (e *examination) room(ctx context.Context, c *connected) {
	most, setting, err := c.room(ctx, topicsOf(e.Services))
	switch {
	case err != nil:
		e.note(levelWarning, "broker", "%s: %v", unseenRoom, err)
	case most > 0:
		e.note(levelWarning, "broker", "an event's payload and headers have at most %d bytes together, because of %s: serve refuses larger ones when they are "+
			"written; want %d or more", most, setting, wholeEvent+relay.FieldBytes)
	}
}
