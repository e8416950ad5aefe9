package simulate

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade/channel"
)

func TestABuyerPaysAndTheShopIsNotifiedUntilItAcknowledges(t *testing.T) {
	s := newShop(t, Faults{})
	s.status = http.StatusInternalServerError
	p := s.pay("O-1-1", 8800, PayOptions{})
	if n := s.deliver(); n != 1 {
		t.Fatalf("%d deliveries at once", n)
	}
	s.advance(999 * time.Millisecond)
	if n := s.deliver(); n != 0 {
		t.Errorf("%d deliveries before the wait is over", n)
	}
	s.advance(time.Millisecond)
	s.status = http.StatusNoContent
	if n := s.deliver(); n != 1 {
		t.Errorf("%d deliveries after the wait", n)
	}
	s.advance(time.Hour)
	if n := s.deliver(); n != 0 {
		t.Errorf("%d deliveries after the acknowledgement", n)
	}
	if len(s.notices) != 2 || len(s.ids) != 1 || s.notices[0] != s.notices[1] {
		t.Errorf("notices %+v, ids %v", s.notices, s.ids)
	}
	if n := s.notices[0]; n.Transaction != p.Transaction || n.Amount != 8800 || n.Type != channel.NoticePaid || n.TradeNo != "O-1-1" {
		t.Errorf("notice %+v, payment %+v", n, p)
	}
	found, err := s.client.Trade(t.Context(), "O-1-1")
	if err != nil || found.State != channel.TradePaid || found.Transaction != p.Transaction || found.Amount != 8800 {
		t.Errorf("trade %+v, %v", found, err)
	}
}

func TestRunDeliversByItself(t *testing.T) {
	s := newShop(t, Faults{})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.world.Run(ctx) }()
	s.pay("O-1-1", 100, PayOptions{})
	deadline := time.Now().Add(10 * time.Second)
	for s.stats().NoticesPending > 0 {
		if time.Now().After(deadline) {
			t.Fatal("the notice is still pending")
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestNoticesSurviveARestart(t *testing.T) {
	s := newShop(t, Faults{})
	receiver := s.world.cfg.NotifyURL
	s.pay("O-1-1", 100, PayOptions{})
	s.open(Faults{}, receiver)
	if n := s.deliver(); n != 1 || len(s.notices) != 1 {
		t.Errorf("%d deliveries, notices %+v", n, s.notices)
	}
}

func TestAClosedTradeCannotBePaidAndAPaidOneCannotBeClosed(t *testing.T) {
	s := newShop(t, Faults{})
	closed, err := s.client.Close(t.Context(), "O-1-1") // the channel has never heard of it
	if err != nil || closed.Paid {
		t.Fatalf("close: %+v, %v", closed, err)
	}
	if _, err := s.world.Pay(t.Context(), s.link("O-1-1", 100), PayOptions{}); !errors.Is(err, ErrNotPayable) {
		t.Errorf("pay a closed trade: %v", err)
	}
	p := s.pay("O-2-1", 100, PayOptions{})
	closed, err = s.client.Close(t.Context(), "O-2-1")
	if err != nil || !closed.Paid || closed.Trade.Transaction != p.Transaction {
		t.Errorf("close a paid trade: %+v, %v", closed, err)
	}
	if _, err := s.world.Pay(t.Context(), s.link("O-2-1", 100), PayOptions{}); !errors.Is(err, ErrNotPayable) {
		t.Errorf("pay it again: %v", err)
	}
	if _, err := s.client.Trade(t.Context(), "O-3-1"); !errors.Is(err, channel.ErrNotFound) {
		t.Errorf("a trade that nobody opened: %v", err)
	}
}

func TestCloseAgainstPayHasOneWinner(t *testing.T) {
	s := newShop(t, Faults{})
	for i := range 100 {
		no := "O-" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + "-" + time.Duration(i).String()
		var payErr error
		var closed channel.Closed
		var closeErr error
		var both sync.WaitGroup
		both.Go(func() { _, payErr = s.world.Pay(t.Context(), s.link(no, 100), PayOptions{}) })
		both.Go(func() { closed, closeErr = s.client.Close(t.Context(), no) })
		both.Wait()
		if closeErr != nil || closed.Paid != (payErr == nil) {
			t.Fatalf("round %d: paid %v, close says %+v, %v", i, payErr, closed, closeErr)
		}
	}
}

func TestAForcedPaymentComesThroughAClosedAndAPaidTrade(t *testing.T) {
	s := newShop(t, Faults{})
	if _, err := s.client.Close(t.Context(), "O-1-1"); err != nil {
		t.Fatal(err)
	}
	first := s.pay("O-1-1", 100, PayOptions{Force: true})
	second := s.pay("O-1-1", 100, PayOptions{Force: true})
	found, err := s.client.Trade(t.Context(), "O-1-1")
	if err != nil || found.Transaction != first.Transaction || first.Transaction == second.Transaction {
		t.Errorf("trade %+v, %v; payments %v, %v", found, err, first, second)
	}
	if s.deliver(); len(s.notices) != 2 {
		t.Errorf("notices %+v", s.notices)
	}
}

func TestRefundsAreOneByNumberAndNeverMoreThanThePayment(t *testing.T) {
	s := newShop(t, Faults{})
	p := s.pay("O-1-1", 10000, PayOptions{})
	request := func(no string, amount int64) channel.RefundRequest {
		return channel.RefundRequest{RefundNo: no, Transaction: p.Transaction, Amount: amount, Currency: "CNY"}
	}
	first, err := s.client.Refund(t.Context(), request("RF-1", 6000))
	if err != nil || first.State != channel.RefundSucceeded {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := s.client.Refund(t.Context(), request("RF-1", 6000))
	if err != nil || again != first {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	code := func(err error) string {
		var refused *channel.RefusedError
		if !errors.As(err, &refused) {
			return ""
		}
		return refused.Code
	}
	if _, err := s.client.Refund(t.Context(), request("RF-1", 5000)); code(err) != channel.CodeMismatch {
		t.Errorf("the number with another amount: %v", err)
	}
	if _, err := s.client.Refund(t.Context(), request("RF-2", 6000)); code(err) != channel.CodeExceeds || !strings.Contains(err.Error(), "4000 left") {
		t.Errorf("too much: %v", err)
	}
	if _, err := s.client.Refund(t.Context(), request("RF-3", -1)); convergo.VerdictOf(err) != convergo.Park {
		t.Errorf("negative: %v", err)
	}
	strange := channel.RefundRequest{RefundNo: "RF-4", Transaction: "TX-unknown", Amount: 1, Currency: "CNY"}
	if _, err := s.client.Refund(t.Context(), strange); code(err) != channel.CodeNotFound {
		t.Errorf("unknown transaction: %v", err)
	}
	if _, err := s.client.RefundStatus(t.Context(), "RF-2"); !errors.Is(err, channel.ErrNotFound) {
		t.Errorf("status of the refused one: %v", err)
	}
	if known, err := s.client.RefundStatus(t.Context(), "RF-1"); err != nil || known != first {
		t.Errorf("status: %+v, %v", known, err)
	}
}

func TestConcurrentRefundsDoNotExceedThePayment(t *testing.T) {
	s := newShop(t, Faults{})
	p := s.pay("O-1-1", 10000, PayOptions{})
	var passed atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			_, err := s.client.Refund(t.Context(), channel.RefundRequest{
				RefundNo: "RF-" + time.Duration(i).String(), Transaction: p.Transaction, Amount: 3000, Currency: "CNY",
			})
			if err == nil {
				passed.Add(1)
			}
		})
	}
	all.Wait()
	if passed.Load() != 3 {
		t.Errorf("%d of 8 refunds of 3000 passed", passed.Load())
	}
}

func TestTheBillHasEveryPaymentAndRefundOfTheMerchant(t *testing.T) {
	s := newShop(t, Faults{})
	p := s.pay("O-1-1", 10000, PayOptions{})
	s.pay("O-2-1", 500, PayOptions{Merchant: "m-2"})
	s.pay("O-3-1", 500, PayOptions{Decline: true})
	s.advance(time.Hour)
	later := s.pay("O-4-1", 700, PayOptions{})
	refund := channel.RefundRequest{RefundNo: "RF-1", Transaction: p.Transaction, Amount: 1, Currency: "CNY"}
	if _, err := s.client.Refund(t.Context(), refund); err != nil {
		t.Fatal(err)
	}
	bill, err := s.client.Bill(t.Context(), time.Time{}, time.Time{})
	if err != nil || len(bill) != 3 {
		t.Fatalf("%+v, %v", bill, err)
	}
	kinds := map[string]int64{}
	for _, row := range bill {
		kinds[row.Kind] += row.Amount
	}
	if kinds[channel.BillPayment] != 10700 || kinds[channel.BillRefund] != 1 {
		t.Errorf("sums %v", kinds)
	}
	bill, err = s.client.Bill(t.Context(), s.clock(), s.clock().Add(time.Hour))
	if err != nil || len(bill) != 2 || (bill[0].Transaction != later.Transaction && bill[1].Transaction != later.Transaction) {
		t.Errorf("the last hour: %+v, %v", bill, err)
	}
}

func TestTheChannelListensOnlyToTheMerchant(t *testing.T) {
	s := newShop(t, Faults{})
	stranger := &channel.Client{BaseURL: s.server.URL, Secret: channel.NewSecret(), Now: s.clock}
	if _, err := stranger.Close(t.Context(), "O-1-1"); convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("a stranger's secret: %v", err)
	}
	late := &channel.Client{BaseURL: s.server.URL, Secret: s.secret, Now: func() time.Time { return s.clock().Add(-6 * time.Minute) }}
	if _, err := late.Close(t.Context(), "O-1-1"); convergo.VerdictOf(err) != convergo.Outage {
		t.Errorf("six minutes late: %v", err)
	}
	if status, _, _ := s.post("/channel/trades/O-1-1/close", struct{}{}); status != http.StatusUnauthorized {
		t.Errorf("unsigned: %d", status)
	}
	for name, link := range map[string]string{
		"forged":  strings.Replace(s.link("O-1-1", 8800), "amount=8800", "amount=1", 1),
		"nothing": "https://x/channel/pay",
	} {
		if _, err := s.world.Pay(t.Context(), link, PayOptions{}); !errors.Is(err, ErrNotPayable) {
			t.Errorf("%s link: %v", name, err)
		}
	}
	link := s.link("O-1-1", 8800)
	s.advance(time.Hour)
	if _, err := s.world.Pay(t.Context(), link, PayOptions{}); !errors.Is(err, ErrNotPayable) {
		t.Errorf("an expired link: %v", err)
	}
}

func TestAPersonSeesWhatHePays(t *testing.T) {
	s := newShop(t, Faults{})
	page := func(link string) (int, string) {
		response, err := http.Get(link)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(text)
	}
	link := channel.Link{Merchant: "<m-1>", TradeNo: "O-1-1", Amount: 8800, Currency: "CNY", Expires: s.clock().Add(time.Hour)}
	if status, text := page(link.URL(s.server.URL, s.secret)); status != http.StatusOK || !strings.Contains(text, "&lt;m-1&gt; asks for <strong>8800</strong>") {
		t.Errorf("%d %s", status, text)
	}
	if status, text := page(link.URL(s.server.URL, channel.NewSecret())); status != http.StatusBadRequest || strings.Contains(text, "<button>") {
		t.Errorf("a forged link: %d %s", status, text)
	}
}

func TestTheLinkIsPaidOverHTTPWithTheDrillsOptions(t *testing.T) {
	s := newShop(t, Faults{})
	path := strings.TrimPrefix(s.link("O-1-1", 8800), s.server.URL)
	if status, body, err := s.post(path, PayOptions{Amount: 1, Currency: "USD", TradeNo: "nobody's"}); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s %v", status, body, err)
	}
	s.deliver()
	if len(s.notices) != 1 || s.notices[0].Amount != 1 || s.notices[0].Currency != "USD" || s.notices[0].TradeNo != "nobody's" {
		t.Errorf("notices %+v", s.notices)
	}
	if status, body, err := s.post(path, struct{}{}); err != nil || status != http.StatusOK {
		t.Errorf("the honest payment after it: %d %s %v", status, body, err)
	}
	if status, _, err := s.post(path, struct{}{}); err != nil || status != http.StatusConflict {
		t.Errorf("once more: %d %v", status, err)
	}
	if status, _, err := s.post(path, map[string]any{"amnt": 1}); err != nil || status != http.StatusBadRequest {
		t.Errorf("an unknown option: %d %v", status, err)
	}
	if f := s.stats().Faults; f[faultAmount] != 1 || f[faultCurrency] != 1 || f[faultUnknown] != 1 {
		t.Errorf("faults %v", f)
	}
}
