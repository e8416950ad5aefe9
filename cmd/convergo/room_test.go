package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/testserver"
)

// A server that takes little refuses what is larger. So it is refused where it is written, in the transaction, which leaves nothing: no
// event becomes a dead one that nobody can send and that holds up its aggregate.
func TestWhatTheBrokerIsTooSmallForIsRefusedWhenItIsWritten(t *testing.T) {
	server := testserver.Own(t, testserver.OpenNATSWith("max_payload: 65536"))
	address := server.URL + "/?lease=2s"
	p := startPlatform(t, t.TempDir(), append(quickly(), "--broker", address)...)
	if text := p.err.String(); !strings.Contains(text, "larger events are refused when they are written") ||
		!strings.Contains(text, `setting="max_payload 65536 of the server"`) {
		t.Errorf("the log does not say why:\n%s", text)
	}
	p.stock("CUP", 500, 100_000)
	bearer := p.session("u-1")
	body := p.orderBody(bearer, "large", "CUP", 1)
	lines := make([]map[string]any, 2000)
	for i := range lines {
		lines[i] = map[string]any{"sku": "CUP", "quantity": i + 1}
	}
	body["lines"] = lines
	refusal := p.call(http.MethodPost, "/orders", bearer, "order:large", body).problem(t, http.StatusUnprocessableEntity)
	if refusal.Field != "body.lines" || !strings.Contains(refusal.Detail, "larger than this platform's broker can carry") {
		t.Errorf("%+v", refusal)
	}
	body["lines"] = lines[:20] // the token is not used up: nothing of the first attempt is left
	var o orderView
	p.call(http.MethodPost, "/orders", bearer, "order:smaller", body).into(t, http.StatusCreated, &o)
	if o = p.wait(bearer, o.OrderNo, "payable"); !o.IsPayable {
		t.Fatalf("%+v", o)
	}
	p.pay(bearer, o.OrderNo)
	if o = p.wait(bearer, o.OrderNo, "completed"); o.Status != "COMPLETED" {
		t.Errorf("%+v", o)
	}
	p.settled(serviceNames()...)
	p.end(0)
	converged(context.Background(), t, p.dir)
	found := findings(t, 0, "--broker", address)
	says(t, found, "broker", levelWarning, fmt.Sprintf("at most %d bytes together, because of max_payload 65536 of the server", 65536-4096))
}

// A relay cannot refuse what another program wrote: it says at its start what will be refused.
func TestARelaySaysWhatTheBrokerIsTooSmallFor(t *testing.T) {
	server := testserver.Own(t, testserver.OpenNATSWith("max_payload: 65536"))
	ctx, cancel := context.WithCancel(t.Context())
	r, ended := &ranProgram{}, make(chan struct{})
	go func() {
		defer close(ended)
		args := []string{"relay", "--database", "sqlite:" + filepath.Join(t.TempDir(), "shop.db"), "--broker", server.URL, "--addr", "127.0.0.1:0"}
		r.code = run(ctx, args, streams{out: &r.out, err: &r.err})
	}()
	defer func() { cancel(); <-ended }()
	eventually(t, 20*time.Second, "the relay says so", func() bool {
		text := r.err.String()
		return strings.Contains(text, "larger events become dead events") && strings.Contains(text, "largest=61440") && strings.Contains(text, "max_payload 65536")
	})
}

// By its own defaults every broker takes what an outbox takes.
func TestEveryBrokerTakesWhatAnOutboxTakesByDefault(t *testing.T) {
	for name, open := range brokerPatients(t) {
		t.Run(name, func(t *testing.T) {
			for _, f := range findings(t, 0, "--services", "order,inventory,risk", "--broker", open(t).address)["broker"] {
				if strings.Contains(f.Detail, "bytes together") || strings.Contains(f.Detail, "cannot be seen; what it refuses") {
					t.Errorf("%v", f)
				}
			}
		})
	}
}
