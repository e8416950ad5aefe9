package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/relay"
)

func discarded() *slog.Logger { return slog.New(slog.DiscardHandler) }

// logOf is where a command that changes something says so besides its answer. At a terminal the answer is enough.
func logOf(s streams) *slog.Logger {
	if s.terminal {
		return discarded()
	}
	return logger("info", false, s.err)
}

// deadLine is one of a list as JSON: what the API shows, without the payload.
type deadLine struct {
	ID        string       `json:"id"`
	Consumer  string       `json:"consumer,omitempty"`
	Key       convergo.Key `json:"key"`
	Type      string       `json:"type"`
	Topic     string       `json:"topic"`
	Aggregate string       `json:"aggregate"`
	Version   int64        `json:"version"`
	CreatedAt time.Time    `json:"created_at"`
	Attempts  int          `json:"attempts"`
	Error     string       `json:"error"`
	Place     string       `json:"place"`
	DiedAt    time.Time    `json:"died_at"`
	Held      bool         `json:"held"`
}

func lineOf(i deadItem) deadLine {
	e := i.event
	return deadLine{
		ID: i.id, Consumer: i.consumer, Key: e.Key, Type: e.Type, Topic: e.Topic, Aggregate: e.Aggregate.String(), Version: e.Version,
		CreatedAt: convergo.Telling(e.CreatedAt), Attempts: i.attempts, Error: i.err, Place: i.place, DiedAt: i.diedAt, Held: i.held,
	}
}

func indented(to io.Writer, v any) error {
	out := json.NewEncoder(to)
	out.SetIndent("", "  ")
	return out.Encode(v)
}

func writeDead(to io.Writer, items []deadItem, more bool) error {
	lines := make([]deadLine, 0, len(items))
	for _, i := range items {
		lines = append(lines, lineOf(i))
	}
	return indented(to, map[string]any{"dead": lines, "more": more})
}

func writeDeadOne(to io.Writer, i deadItem, whole int) error {
	event := viewEvent(i.event)
	return indented(to, struct {
		deadLine
		MessageID    string            `json:"message_id"`
		Headers      map[string]string `json:"headers"`
		Payload      string            `json:"payload"`
		Base64       bool              `json:"payload_base64"`
		PayloadBytes int               `json:"payload_bytes"`
		PayloadCut   bool              `json:"payload_cut"`
	}{lineOf(i), event.MessageID, i.event.Headers, event.Payload, event.Base64, whole, whole > len(i.event.Payload)})
}

func describeDead(to io.Writer, i deadItem, whole int) error {
	e := i.event
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s%s\n", name, printable(fmt.Sprintf(format, args...)))
	}
	line("id", "%s", i.id)
	if i.consumer != "" {
		line("consumer", "%s", i.consumer)
	}
	line("key", "%s", e.Key)
	line("event", "%s.%s, version %d, message %s", e.Topic, e.Type, e.Version, e.MessageID)
	line("aggregate", "%s", e.Aggregate)
	line("written", "%s", e.CreatedAt.UTC().Format(time.RFC3339Nano))
	line("died", "%s at %s after %d attempts", i.diedAt.UTC().Format(time.RFC3339Nano), i.place, i.attempts)
	line("holds", "%t", i.held)
	line("error", "%s", i.err)
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		if name == relay.UnreadableHeaders { // why is in the error
			_, text, _ := strings.Cut(e.Headers[name], "\n")
			line("headers", "%s", text)
			continue
		}
		line("header", "%s: %s", name, e.Headers[name])
	}
	text := strings.ToValidUTF8(string(e.Payload), "")
	switch {
	case utf8.Valid(e.Payload) || whole > len(e.Payload) && len(text)+utf8.UTFMax > len(e.Payload): // cut inside a character
		line("payload", "%d bytes", whole)
		b.WriteString(multiline(text))
	default:
		line("payload", "%d bytes, not text", whole)
		fmt.Fprintf(&b, "%x", e.Payload)
	}
	b.WriteString("\n")
	if left := whole - len(e.Payload); whole > convergo.MaxPayloadBytes {
		b.WriteString("it is longer than an event's may be, and is not read\n")
	} else if left > 0 {
		fmt.Fprintf(&b, "… and %d bytes more: --bytes %d\n", left, whole)
	}
	_, err := io.WriteString(to, b.String())
	return err
}

// printable keeps what an event brings from steering a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '�'
		}
		return r
	}, text)
}

func multiline(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = printable(strings.ReplaceAll(l, "\t", "  "))
	}
	return strings.Join(lines, "\n")
}

func cut(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most]) + "…"
}

// toll counts what was done.
type toll struct {
	out         io.Writer
	done        string
	dry, asJSON bool
	did         []string
	refused     map[string]string
}

// add says that it was done to one, or would be.
func (t *toll) add(i chosen) error {
	t.did = append(t.did, i.id)
	if t.asJSON {
		return nil
	}
	would := ""
	if t.dry {
		would = "would be "
	}
	_, err := fmt.Fprintf(t.out, "%s %s%s (%s)\n", i.id, would, t.done, printable(i.key))
	return err
}

func (t *toll) refuse(id string, why error) {
	if t.refused == nil {
		t.refused = map[string]string{}
	}
	t.refused[id] = strings.TrimPrefix(why.Error(), id+": ") // the id is said with it
}

// report says how many, and fails when there was one that nothing was done to.
func (t *toll) report() error {
	if t.asJSON {
		err := indented(t.out, map[string]any{t.done: append([]string{}, t.did...), "dry_run": t.dry, "refused": t.refused})
		if err != nil {
			return err
		}
	} else {
		would := "were"
		if len(t.did) == 1 {
			would = "was"
		}
		if t.dry {
			would = "would be"
		}
		if _, err := fmt.Fprintf(t.out, "%d %s %s\n", len(t.did), would, t.done); err != nil {
			return err
		}
	}
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(t.refused)) {
		if len(errs) == 10 {
			errs = append(errs, fmt.Errorf("and %d more", len(t.refused)-10))
			break
		}
		errs = append(errs, fmt.Errorf("%s: %s", id, t.refused[id]))
	}
	return errors.Join(errs...)
}
