package simulate

import (
	"context"
	"net/http"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade/channel"
)

// MessageRequest asks the messenger to tell a user something. Two requests with one key are one message.
type MessageRequest struct {
	Key  string `json:"key"`
	To   string `json:"to"`
	Text string `json:"text"`
}

// Message is what the messenger knows of it.
type Message struct {
	Key   string `json:"key"`
	ID    string `json:"id"`
	State string `json:"state"` // "ACCEPTED"
}

// Accepted is the state of every message that the messenger knows.
const Accepted = "ACCEPTED"

type messageRow struct {
	Key     string `db:"message_key"`
	ID      string `db:"message_id"`
	Content string `db:"content"`
	At      int64  `db:"at"`
}

// send is POST /messenger/messages.
func (w *World) send(r *http.Request, body []byte) (answer, error) {
	var q MessageRequest
	if err := read(body, &q); err != nil {
		return answer{}, err
	}
	if err := convergo.Key(q.Key).Validate(); err != nil || q.To == "" || q.Text == "" {
		return answer{}, refuse(http.StatusBadRequest, channel.CodeInvalid, "key, to and text are needed")
	}
	var row messageRow
	err := w.db.Update(r.Context(), func(ctx context.Context, tx convergo.Tx) error {
		row = messageRow{Key: q.Key, ID: newID("SMS")}
		fresh, err := w.exec(ctx, tx, "InsertMessage", q.Key, row.ID, string(body), convergo.Micros(w.cfg.Now()))
		if err != nil || fresh == 1 {
			return err
		}
		if _, err := w.find(ctx, tx, &row, "FindMessage", q.Key); err != nil {
			return err
		}
		if row.Content != string(body) {
			return refuse(http.StatusUnprocessableEntity, channel.CodeMismatch, "key was used for another message")
		}
		_, err = w.exec(ctx, tx, "RepeatMessage", q.Key)
		return err
	})
	return answer{http.StatusOK, Message{row.Key, row.ID, Accepted}}, err
}

// findMessage is GET /messenger/messages/{key}.
func (w *World) findMessage(r *http.Request, _ []byte) (answer, error) {
	var row messageRow
	err := w.db.View(r.Context(), func(ctx context.Context, tx convergo.Tx) error {
		found, err := w.find(ctx, tx, &row, "FindMessage", r.PathValue("key"))
		if err == nil && !found {
			err = refuse(http.StatusNotFound, channel.CodeNotFound, "no such message")
		}
		return err
	})
	return answer{http.StatusOK, Message{row.Key, row.ID, Accepted}}, err
}
