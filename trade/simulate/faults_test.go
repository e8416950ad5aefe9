package simulate

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade/channel"
)

func TestEveryCopyIsDeliveredUnderOneID(t *testing.T) {
	s := newShop(t, Faults{Seed: 1, Copies: 8, Delay: time.Minute})
	s.pay("O-1-1", 100, PayOptions{})
	s.pay("O-2-1", 100, PayOptions{})
	if n := s.deliver(); n == 16 {
		t.Errorf("nothing was held back")
	}
	s.advance(time.Minute)
	s.deliver()
	if len(s.notices) != 16 || len(s.ids) != 2 {
		t.Fatalf("%d notices, ids %v", len(s.notices), s.ids)
	}
	if f := s.stats().Faults; f[faultCopy] != 14 || f[faultDelayed] != 16 {
		t.Errorf("faults %v", f)
	}
}

func TestForgedCopiesAreRefusedAndCounted(t *testing.T) {
	s := newShop(t, Faults{Forged: 1000})
	s.pay("O-1-1", 100, PayOptions{})
	s.deliver()
	f := s.stats().Faults
	if s.forged != 1 || len(s.notices) != 1 || f[faultForged] != 1 || f[faultBelieved] != 0 {
		t.Errorf("%d forged, notices %+v, faults %v", s.forged, s.notices, f)
	}
}

func TestALostAnswerIsDoneAndTheQuestionFindsIt(t *testing.T) {
	s := newShop(t, Faults{})
	p := s.pay("O-1-1", 100, PayOptions{})
	s.world.SetFaults(Faults{LostAnswers: 1000})
	request := channel.RefundRequest{RefundNo: "RF-1", Transaction: p.Transaction, Amount: 100, Currency: "CNY"}
	_, err := s.client.Refund(t.Context(), request)
	if !errors.Is(err, channel.ErrAmbiguous) || convergo.VerdictOf(err) != convergo.Again {
		t.Fatalf("%v", err)
	}
	if known, err := s.client.RefundStatus(t.Context(), "RF-1"); err != nil || known.State != channel.RefundSucceeded {
		t.Errorf("status: %+v, %v", known, err)
	}
	if f := s.stats().Faults; f[faultLostAnswer] != 1 {
		t.Errorf("faults %v", f)
	}
}

func TestAnErrorDoesNothing(t *testing.T) {
	s := newShop(t, Faults{})
	p := s.pay("O-1-1", 100, PayOptions{})
	s.world.SetFaults(Faults{Errors: 1000})
	_, err := s.client.Refund(t.Context(), channel.RefundRequest{RefundNo: "RF-1", Transaction: p.Transaction, Amount: 100, Currency: "CNY"})
	if !errors.Is(err, channel.ErrAmbiguous) {
		t.Fatalf("%v", err)
	}
	s.world.SetFaults(Faults{})
	if _, err := s.client.RefundStatus(t.Context(), "RF-1"); !errors.Is(err, channel.ErrNotFound) {
		t.Errorf("status: %v", err)
	}
}

func TestARefusalBelongsToTheNumber(t *testing.T) {
	s := newShop(t, Faults{Refusals: 500})
	p := s.pay("O-1-1", 1_000_000, PayOptions{})
	refused, passed := 0, 0
	for i := range 40 {
		request := channel.RefundRequest{RefundNo: "RF-" + time.Duration(i).String(), Transaction: p.Transaction, Amount: 1, Currency: "CNY"}
		_, first := s.client.Refund(t.Context(), request)
		_, second := s.client.Refund(t.Context(), request)
		if (first == nil) != (second == nil) {
			t.Fatalf("%s: %v, then %v", request.RefundNo, first, second)
		}
		if first == nil {
			passed++
		} else {
			refused++
		}
	}
	if refused < 5 || passed < 5 {
		t.Errorf("%d refused, %d passed", refused, passed)
	}
}

func TestAParcelTravels(t *testing.T) {
	s := newShop(t, Faults{})
	request := BookingRequest{Key: "SHIP:O-1", OrderNo: "O-1", Pieces: 2}
	state := func() string {
		var b Booking
		if status := s.get("/carrier/bookings/SHIP:O-1", &b); status != http.StatusOK {
			return http.StatusText(status)
		}
		return b.State
	}
	if got := state(); got != "Not Found" {
		t.Errorf("before it is booked: %s", got)
	}
	_, first, err := s.post("/carrier/bookings", request)
	if err != nil {
		t.Fatal(err)
	}
	_, again, err := s.post("/carrier/bookings", request)
	if err != nil || string(first) != string(again) {
		t.Errorf("booked twice: %s, %s, %v", first, again, err)
	}
	request.Pieces = 3
	if status, _, _ := s.post("/carrier/bookings", request); status != http.StatusUnprocessableEntity {
		t.Errorf("the key for another parcel: %d", status)
	}
	for _, step := range []struct {
		wait time.Duration
		want string
	}{{0, Booked}, {59 * time.Second, Booked}, {time.Second, InTransit}, {8*time.Minute + 59*time.Second, InTransit}, {time.Second, Delivered}} {
		s.advance(step.wait)
		if got := state(); got != step.want {
			t.Errorf("after %s: %s, want %s", step.wait, got, step.want)
		}
	}
	if status, _, _ := s.post("/carrier/bookings/SHIP:O-1/cancel", nil); status != http.StatusConflict {
		t.Errorf("cancel a delivered parcel: %d", status)
	}
}

func TestACancellationBeforeTheBookingLeavesATombstone(t *testing.T) {
	s := newShop(t, Faults{})
	for _, path := range []string{"/carrier/bookings/SHIP:O-1/cancel", "/carrier/bookings/SHIP:O-1/cancel"} {
		if status, body, _ := s.post(path, nil); status != http.StatusOK {
			t.Fatalf("cancel: %d %s", status, body)
		}
	}
	if status, _, _ := s.post("/carrier/bookings", BookingRequest{Key: "SHIP:O-1", OrderNo: "O-1", Pieces: 1}); status != http.StatusConflict {
		t.Errorf("the booking after it: %d", status)
	}
	if s.stats().Bookings != 0 {
		t.Errorf("stats %+v", s.stats())
	}
}

func TestAMessageIsOneByKey(t *testing.T) {
	s := newShop(t, Faults{})
	m := MessageRequest{Key: "NOTIFY:OrderPaid:O-1", To: "u-1", Text: "paid"}
	s.world.SetFaults(Faults{LostAnswers: 1000})
	if _, _, err := s.post("/messenger/messages", m); err == nil {
		t.Errorf("the answer was not lost")
	}
	s.world.SetFaults(Faults{})
	var known Message
	if status := s.get("/messenger/messages/"+m.Key, &known); status != http.StatusOK || known.State != Accepted {
		t.Errorf("%d %+v", status, known)
	}
	_, body, err := s.post("/messenger/messages", m)
	var again Message
	if err != nil || json.Unmarshal(body, &again) != nil || again != known || s.stats().Messages != 1 {
		t.Errorf("again: %s, %v; %+v", body, err, s.stats())
	}
	m.Text = "other"
	if status, _, _ := s.post("/messenger/messages", m); status != http.StatusUnprocessableEntity {
		t.Errorf("the key for another message: %d", status)
	}
	if status := s.get("/messenger/messages/NOTIFY:x", &known); status != http.StatusNotFound {
		t.Errorf("an unknown key: %d", status)
	}
}
