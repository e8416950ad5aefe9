package simulate

import (
	"context"
	"net/http"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade/channel"
)

// States of a booking.
const (
	Booked    = "BOOKED"     // waits for the van; can be canceled
	InTransit = "IN_TRANSIT" // on its way
	Delivered = "DELIVERED"
	Canceled  = "CANCELED"
)

// BookingRequest asks the carrier to carry an order. Two requests with one key are one booking.
type BookingRequest struct {
	Key     string `json:"key"`
	OrderNo string `json:"order_no"`
	Pieces  int64  `json:"pieces"`
}

// Booking is what the carrier knows of it.
type Booking struct {
	Key        string `json:"key"`
	TrackingNo string `json:"tracking_no,omitempty"`
	State      string `json:"state"`
}

type bookingRow struct {
	Key        string `db:"booking_key"`
	TrackingNo string `db:"tracking_no"`
	Content    string `db:"content"`
	BookedAt   int64  `db:"booked_at"`
	CanceledAt int64  `db:"canceled_at"`
}

// wire derives the state from the time that has passed.
func (w *World) wire(row bookingRow) Booking {
	b := Booking{Key: row.Key, TrackingNo: row.TrackingNo}
	passed := w.cfg.Now().Sub(convergo.FromMicros(row.BookedAt))
	switch {
	case row.CanceledAt != 0:
		b.State = Canceled
	case passed >= w.cfg.Transit:
		b.State = Delivered
	case passed >= w.cfg.Transit/10:
		b.State = InTransit
	default:
		b.State = Booked
	}
	return b
}

// book is POST /carrier/bookings.
func (w *World) book(r *http.Request, body []byte) (answer, error) {
	var q BookingRequest
	if err := read(body, &q); err != nil {
		return answer{}, err
	}
	if err := convergo.Key(q.Key).Validate(); err != nil || q.OrderNo == "" || q.Pieces <= 0 {
		return answer{}, refuse(http.StatusBadRequest, channel.CodeInvalid, "key, order_no and pieces > 0 are needed")
	}
	var row bookingRow
	err := w.db.Update(r.Context(), func(ctx context.Context, tx convergo.Tx) error {
		row = bookingRow{Key: q.Key, TrackingNo: newID("CN"), BookedAt: convergo.Micros(w.cfg.Now())}
		fresh, err := w.exec(ctx, tx, "InsertBooking", q.Key, row.TrackingNo, string(body), row.BookedAt, 0)
		if err != nil || fresh == 1 {
			return err
		}
		if _, err := w.find(ctx, tx, &row, "FindBooking", q.Key); err != nil {
			return err
		}
		switch {
		case row.CanceledAt != 0:
			return refuse(http.StatusConflict, channel.CodeCanceled, "the booking was canceled")
		case row.Content != string(body):
			return refuse(http.StatusUnprocessableEntity, channel.CodeMismatch, "key was used for another booking")
		}
		_, err = w.exec(ctx, tx, "RepeatBooking", q.Key)
		return err
	})
	return answer{http.StatusOK, w.wire(row)}, err
}

// findBooking is GET /carrier/bookings/{key}.
func (w *World) findBooking(r *http.Request, _ []byte) (answer, error) {
	var row bookingRow
	err := w.db.View(r.Context(), func(ctx context.Context, tx convergo.Tx) error {
		found, err := w.find(ctx, tx, &row, "FindBooking", r.PathValue("key"))
		if err == nil && !found {
			err = refuse(http.StatusNotFound, channel.CodeNotFound, "no such booking")
		}
		return err
	})
	return answer{http.StatusOK, w.wire(row)}, err
}

// cancelBooking is POST /carrier/bookings/{key}/cancel. A cancellation of a booking that has not come yet leaves a
// tombstone; a parcel that moves cannot be canceled.
func (w *World) cancelBooking(r *http.Request, _ []byte) (answer, error) {
	key, now := r.PathValue("key"), w.cfg.Now()
	if err := convergo.Key(key).Validate(); err != nil {
		return answer{}, refuse(http.StatusBadRequest, channel.CodeInvalid, "key: "+err.Error())
	}
	var row bookingRow
	err := w.db.Update(r.Context(), func(ctx context.Context, tx convergo.Tx) error {
		if _, err := w.exec(ctx, tx, "InsertBooking", key, "", "", convergo.Micros(now), convergo.Micros(now)); err != nil {
			return err
		}
		moved := convergo.Micros(now.Add(-w.cfg.Transit / 10))
		if _, err := w.exec(ctx, tx, "CancelBooking", convergo.Micros(now), key, moved); err != nil {
			return err
		}
		_, err := w.find(ctx, tx, &row, "FindBooking", key)
		return err
	})
	if err != nil {
		return answer{}, err
	}
	if row.CanceledAt == 0 {
		return answer{}, refuse(http.StatusConflict, channel.CodeAlreadyMoving, "the parcel is on its way")
	}
	return answer{http.StatusOK, w.wire(row)}, nil
}
