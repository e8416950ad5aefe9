package shipping

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/trade"
)

// bookingKey is the shipment's effect key and its idempotency key at the carrier.
func bookingKey(orderNo string) string { return "SHIP:" + orderNo }

// onPaid makes the order's one shipment. A second OrderPaid, and one that a full refund has overtaken, finds the row.
func (s *Service) onPaid(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	p, err := trade.Decode[trade.Paid](e)
	if err != nil {
		return err
	}
	var pieces int64
	for _, l := range p.Lines {
		if err := trade.CheckQuantity(l.Quantity); err != nil {
			return convergo.Permanent(fmt.Errorf("%s %s: line %d: %w", e.Type, e.Key, l.LineNo, err))
		}
		pieces += l.Quantity
	}
	if err := trade.CheckOrderNo(p.OrderNo); err != nil || pieces == 0 {
		return convergo.Permanent(fmt.Errorf("%s %s: %d pieces: %w", e.Type, e.Key, pieces, errors.Join(err, convergo.ErrInvalid)))
	}
	fresh, err := s.insert(ctx, tx, e, p.OrderNo, p.UserID, pieces, Booking, "")
	if err != nil || !fresh {
		return err
	}
	_, err = trade.RecordEffect(ctx, tx, s.deps.DB.Dialect(), trade.Effect{
		Key: convergo.Key(bookingKey(p.OrderNo)), OrderNo: p.OrderNo, Kind: "shipping.ship", Cause: e.Key, At: s.deps.Now(),
	})
	if err != nil {
		return err
	}
	return s.schedule(ctx, tx, outside.Call{Kind: callBook, Key: convergo.Key(bookingKey(p.OrderNo)), Group: bookingKey(p.OrderNo)},
		carrierCall{OrderNo: p.OrderNo, BookingKey: bookingKey(p.OrderNo), Pieces: pieces})
}

func (s *Service) insert(
	ctx context.Context, tx convergo.Tx, e convergo.Event, orderNo, userID string, pieces int64, state machine.State, reason string,
) (fresh bool, err error) {
	at := s.deps.Now()
	n, err := s.exec(ctx, tx, "InsertShipment", orderNo, userID, string(state), pieces, bookingKey(orderNo), reason,
		convergo.Micros(at), convergo.Micros(at))
	if err != nil || n == 0 {
		return false, err
	}
	return true, Shipments().Begin(ctx, tx, machine.Request{ID: orderNo, Cause: string(e.Key), Key: e.Key, Actor: Name, At: at}, state)
}

// onRefunded stops a shipment that has not left, when everything is refunded: as soon as the last of it is asked back, because
// an order that is REFUNDING never goes on, and a channel may take hours; at the latest when all of it is back, which for an order
// without cash is the first that is heard. A partial refund leaves the parcel alone. The
// cancellation is in the group of the booking: the carrier is asked to stop only after the booking's outcome is known.
func (s *Service) onRefunded(ctx context.Context, tx convergo.Tx, e convergo.Event) error {
	r, err := trade.Decode[trade.Refund](e)
	if err != nil {
		return err
	}
	if !r.Full {
		return nil
	}
	if err := trade.CheckOrderNo(r.OrderNo); err != nil {
		return convergo.Permanent(err)
	}
	fresh, err := s.insert(ctx, tx, e, r.OrderNo, r.UserID, 0, Canceled, "refunded before it was paid for here")
	if err != nil || fresh {
		return err // a tombstone: the OrderPaid that is still on its way ships nothing
	}
	row, err := s.find(ctx, tx, r.OrderNo)
	if err != nil {
		return err
	}
	move := machine.Request{ID: r.OrderNo, Move: "canceling", Cause: r.RefundNo, Key: e.Key, Actor: Name, At: s.deps.Now()}
	moved, err := Shipments().Apply(ctx, tx, move)
	switch {
	case err != nil:
		return err
	case moved.State == Failed: // the carrier has nothing to stop
		return s.canceled(ctx, tx, *row, move)
	case moved.Answer != machine.Applied:
		return nil // it has left, or was canceled before
	}
	return s.schedule(ctx, tx, outside.Call{Kind: callCancel, Key: convergo.Key("CANCEL:" + row.BookingKey), Group: row.BookingKey},
		carrierCall{OrderNo: row.OrderNo, BookingKey: row.BookingKey, Pieces: row.Pieces})
}

// canceled ends the shipment, reverses its effect and tells it.
func (s *Service) canceled(ctx context.Context, tx convergo.Tx, row shipmentRow, move machine.Request) error {
	move.Move = "cancel"
	moved, err := Shipments().Apply(ctx, tx, move)
	if err != nil || moved.Answer != machine.Applied {
		return err
	}
	_, err = trade.RecordEffect(ctx, tx, s.deps.DB.Dialect(), trade.Effect{
		Key: convergo.Key("CANCEL:" + row.BookingKey), OrderNo: row.OrderNo, Kind: "shipping.cancel", Reverses: convergo.Key(row.BookingKey),
		Cause: move.Key, At: s.deps.Now(),
	})
	if err != nil {
		return err
	}
	return s.emit(ctx, tx, trade.ShipmentCanceled, row, moved.Version)
}

// carrierCall is the payload of every call to the carrier.
type carrierCall struct {
	OrderNo    string `json:"order_no"`
	BookingKey string `json:"booking_key"`
	Pieces     int64  `json:"pieces,omitempty"`
	Round      int64  `json:"round,omitempty"` // of tracking
}

func payload(c outside.Claimed) (carrierCall, error) {
	var p carrierCall
	if err := json.Unmarshal(c.Payload, &p); err != nil {
		return p, fmt.Errorf("call %s: %w", c.Key, err)
	}
	return p, nil
}

func (s *Service) book(ctx context.Context, c outside.Claimed) ([]byte, error) {
	p, err := payload(c)
	if err != nil {
		return nil, err
	}
	t, err := s.cfg.Carrier.Book(ctx, BookingRequest{Key: string(c.Key), OrderNo: p.OrderNo, Pieces: p.Pieces})
	if err != nil {
		return nil, err
	}
	return json.Marshal(t)
}

func (s *Service) askBooking(ctx context.Context, c outside.Claimed) (result []byte, known bool, err error) {
	t, known, err := s.cfg.Carrier.Booking(ctx, string(c.Key))
	if err != nil || !known {
		return nil, false, err
	}
	result, err = json.Marshal(t)
	return result, err == nil, err
}

// booked: the parcel is the carrier's. When everything was refunded meanwhile the shipment stays CANCELING, and the
// cancellation, which is next in the group, decides.
func (s *Service) booked(ctx context.Context, tx convergo.Tx, c outside.Claimed, result []byte) error {
	p, t, err := answered(c, result)
	if err != nil {
		return err
	}
	if t.State == CarrierCanceled { // not by us: our cancellation comes after the booking
		return s.bookingRefused(ctx, tx, c, errors.New("the carrier says that the booking is canceled"))
	}
	row, err := s.note(ctx, tx, p.OrderNo, t.TrackingNo, "")
	if err != nil || row.State != Booking {
		return err
	}
	return s.dispatch(ctx, tx, *row, c)
}

func (s *Service) dispatch(ctx context.Context, tx convergo.Tx, row shipmentRow, c outside.Claimed) error {
	moved, err := Shipments().Apply(ctx, tx, machine.Request{
		ID: row.OrderNo, Move: "dispatch", Cause: row.TrackingNo, Key: c.Key, Actor: "carrier", At: s.deps.Now(),
	})
	if err != nil || moved.Answer != machine.Applied {
		return err
	}
	if err := s.emit(ctx, tx, trade.ShipmentDispatched, row, moved.Version); err != nil {
		return err
	}
	return s.trackLater(ctx, tx, carrierCall{OrderNo: row.OrderNo, BookingKey: row.BookingKey, Round: 1})
}

func (s *Service) trackLater(ctx context.Context, tx convergo.Tx, p carrierCall) error {
	return s.schedule(ctx, tx, outside.Call{
		Kind: callTrack, Key: convergo.Key(fmt.Sprintf("TRACK:%s:%d", p.OrderNo, p.Round)), NotBefore: s.deps.Now().Add(s.cfg.TrackEvery),
	}, p)
}

func (s *Service) bookingRefused(ctx context.Context, tx convergo.Tx, c outside.Claimed, cause error) error {
	p, err := payload(c)
	if err != nil {
		return err
	}
	s.deps.Log.Error("the carrier refused a shipment", "order_no", p.OrderNo, "error", cause)
	row, err := s.note(ctx, tx, p.OrderNo, "", clip(cause.Error()))
	if err != nil || row.State != Booking {
		return err // CANCELING: the cancellation that comes next finds nothing to stop
	}
	_, err = Shipments().Apply(ctx, tx, machine.Request{
		ID: p.OrderNo, Move: "fail", Key: c.Key, Actor: "carrier", At: s.deps.Now(),
	})
	return err
}

func (s *Service) track(ctx context.Context, c outside.Claimed) ([]byte, error) {
	p, err := payload(c)
	if err != nil {
		return nil, err
	}
	t, known, err := s.cfg.Carrier.Booking(ctx, p.BookingKey)
	if err != nil {
		return nil, fmt.Errorf("track %s: %s", p.OrderNo, err.Error()) // without its verdict: a question is repeated until it is answered
	}
	if !known {
		return nil, fmt.Errorf("track %s: the carrier has lost booking %s; ask the carrier", p.OrderNo, p.BookingKey)
	}
	return json.Marshal(t)
}

// tracked: delivered, given up by the carrier, or asked again later.
func (s *Service) tracked(ctx context.Context, tx convergo.Tx, c outside.Claimed, result []byte) error {
	p, t, err := answered(c, result)
	if err != nil {
		return err
	}
	switch t.State {
	case CarrierDelivered:
	case CarrierCanceled: // not by us, who stop only what has not left
		return s.lost(ctx, tx, p.OrderNo, t.TrackingNo, c.Key)
	default:
		p.Round++
		return s.trackLater(ctx, tx, p)
	}
	row, err := s.find(ctx, tx, p.OrderNo)
	if err != nil || row == nil {
		return err
	}
	moved, err := Shipments().Apply(ctx, tx, machine.Request{
		ID: p.OrderNo, Move: "deliver", Cause: row.TrackingNo, Key: c.Key, Actor: "carrier", At: s.deps.Now(),
	})
	if err != nil || moved.Answer != machine.Applied {
		return err
	}
	return s.emit(ctx, tx, trade.ShipmentDelivered, *row, moved.Version)
}

// lost: the carrier will not deliver what it took over. A person has to settle that; a full refund ends the shipment.
func (s *Service) lost(ctx context.Context, tx convergo.Tx, orderNo, trackingNo string, key convergo.Key) error {
	s.deps.Log.Error("the carrier gave up a parcel on its way", "order_no", orderNo)
	if _, err := s.note(ctx, tx, orderNo, trackingNo, "the carrier gave the parcel up on its way"); err != nil {
		return err
	}
	_, err := Shipments().Apply(ctx, tx, machine.Request{ID: orderNo, Move: "fail", Key: key, Actor: "carrier", At: s.deps.Now()})
	return err
}

// cancel asks the carrier to stop the parcel. An answer is repeated until there is one, whatever its verdict.
func (s *Service) cancel(ctx context.Context, c outside.Claimed) ([]byte, error) {
	p, err := payload(c)
	if err != nil {
		return nil, err
	}
	canceled, err := s.cfg.Carrier.Cancel(ctx, p.BookingKey)
	if err != nil {
		return nil, fmt.Errorf("cancel %s: %s", p.OrderNo, err.Error())
	}
	return json.Marshal(canceled)
}

// cancelAnswered: stopped, or too late, and then it is a shipment like any other.
func (s *Service) cancelAnswered(ctx context.Context, tx convergo.Tx, c outside.Claimed, result []byte) error {
	p, err := payload(c)
	if err != nil {
		return err
	}
	var stopped bool
	if err := json.Unmarshal(result, &stopped); err != nil {
		return fmt.Errorf("call %s: result: %w", c.Key, err)
	}
	row, err := s.find(ctx, tx, p.OrderNo)
	if err != nil || row == nil || row.State != Canceling {
		return err
	}
	if !stopped {
		return s.dispatch(ctx, tx, *row, c)
	}
	return s.canceled(ctx, tx, *row, machine.Request{
		ID: p.OrderNo, Cause: string(c.Key), Key: c.Key, Actor: "carrier", At: s.deps.Now(),
	})
}

func answered(c outside.Claimed, result []byte) (p carrierCall, t Tracking, err error) {
	if p, err = payload(c); err != nil {
		return p, t, err
	}
	if err = json.Unmarshal(result, &t); err != nil {
		err = fmt.Errorf("call %s: result: %w", c.Key, err)
	}
	return p, t, err
}

// note stores what the carrier said and returns the row with it.
func (s *Service) note(ctx context.Context, tx convergo.Tx, orderNo, trackingNo, reason string) (*shipmentRow, error) {
	if _, err := s.exec(ctx, tx, "NoteShipment", trackingNo, reason, convergo.Micros(s.deps.Now()), orderNo); err != nil {
		return nil, err
	}
	row, err := s.find(ctx, tx, orderNo)
	if err == nil && row == nil {
		err = fmt.Errorf("shipping: order %s has no shipment", orderNo)
	}
	return row, err
}

func (s *Service) schedule(ctx context.Context, tx convergo.Tx, call outside.Call, p carrierCall) (err error) {
	if call.Payload, err = json.Marshal(p); err != nil {
		return fmt.Errorf("call %s: %w", call.Key, err)
	}
	_, err = s.deps.Calls.Schedule(ctx, tx, call)
	return err
}

// emit tells what happened to the shipment; there is one event of each type per order.
func (s *Service) emit(ctx context.Context, tx convergo.Tx, eventType string, row shipmentRow, version int64) error {
	event, err := trade.NewEvent(eventType, convergo.Key(eventType+":"+row.OrderNo), row.OrderNo, version,
		trade.Answer{OrderNo: row.OrderNo, UserID: row.UserID})
	if err != nil {
		return err
	}
	return s.deps.Outbox.Add(ctx, tx, event)
}

func clip(text string) string {
	const most = 500
	if len(text) <= most {
		return text
	}
	cut := most
	for cut > 0 && text[cut]&0xC0 == 0x80 { // not inside of a character
		cut--
	}
	return text[:cut]
}
