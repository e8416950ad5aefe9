package channel_test

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/convergo/convergo/trade/channel"
)

// A receiver verifies the raw bytes, with every secret that is active, before it reads anything.
func ExampleVerify() {
	older, newer := channel.NewSecret(), channel.NewSecret()
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	body := []byte(`{"type":"payment.succeeded"}`)

	h := http.Header{}
	if err := channel.SetSignature(h, "msg_1", now, body, newer); err != nil {
		fmt.Println(err)
		return
	}
	id, err := channel.Verify(h, body, now.Add(time.Minute), older, newer)
	fmt.Println(id, err)

	_, err = channel.Verify(h, []byte(`{"type":"payment.SUCCEEDED"}`), now, older, newer)
	fmt.Println(errors.Is(err, channel.ErrForged))
	_, err = channel.Verify(h, body, now.Add(time.Hour), older, newer)
	fmt.Println(errors.Is(err, channel.ErrTimestamp))
	fmt.Println(newer)
	// Output:
	// msg_1 <nil>
	// true
	// true
	// whsec_(hidden)
}
