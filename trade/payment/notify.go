package payment

import (
	"bytes"
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
)

func (s *Service) notifyRoute(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "payment-notice", Method: http.MethodPost, Path: "/payments/notify/{channel}", Tags: []string{Name},
		Summary: "A notice of a payment channel, signed by Standard Webhooks 1.0",
		Description: "204: recorded; stop repeating. 401: the signature does not fit; nothing was written. 400: signed, but cannot be read in " +
			"exactly one way; nothing was written. A payment that fits no order is recorded and answered with 204 as well.",
		Errors:        []int{http.StatusUnauthorized},
		DefaultStatus: http.StatusNoContent, MaxBodyBytes: MaxNotice, Security: []map[string][]string{},
	}, s.notify)
}

// notifyInput takes the body as it came, because the signature is over its bytes, and all headers, because a doubled one
// must be seen.
type notifyInput struct {
	Channel string `path:"channel" maxLength:"32"`
	RawBody []byte
	headers http.Header
}

// Resolve keeps the headers.
func (in *notifyInput) Resolve(ctx huma.Context) []error {
	in.headers = http.Header{}
	ctx.EachHeader(func(name, value string) { in.headers.Add(name, value) })
	return nil
}

// notify verifies, records and decides, commits, and only then answers.
func (s *Service) notify(ctx context.Context, in *notifyInput) (*struct{}, error) {
	ch, ok := s.cfg.Channels[in.Channel]
	if !ok {
		return nil, trade.NotFound("path.channel", "no such payment channel is configured")
	}
	body := bytes.Clone(in.RawBody)
	id, err := channel.Verify(in.headers, body, s.now(), ch.Secrets...)
	if err != nil {
		s.forged.Add(1)
		s.deps.Log.Warn("a payment notice is not verified", "channel", in.Channel, "error", err)
		return nil, trade.NewProblem(http.StatusUnauthorized, "header."+channel.HeaderSignature, err.Error(),
			"sign the raw body by Standard Webhooks 1.0 with the shared secret, with a timestamp of now")
	}
	notice, err := channel.ParseNotice(body)
	if err != nil {
		s.unusable.Add(1)
		s.deps.Log.Error("a signed payment notice cannot be read", "channel", in.Channel, "webhook_id", id, "error", err)
		return nil, trade.NewProblem(http.StatusBadRequest, "body", err.Error(), "send each field once, as documented")
	}
	err = s.deps.DB.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		return s.receive(ctx, tx, in.Channel, sourceNotice, id, notice, body)
	})
	if err != nil {
		return nil, err
	}
	s.verified.Add(1)
	return nil, nil
}
