package notification

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/convergo/convergo/trade"
)

// HTTPMessenger is a Messenger over HTTP. BaseURL is required.
type HTTPMessenger struct {
	BaseURL string // for example "https://messenger.example", without a trailing slash
	Token   string // bearer token; empty sends none
	HTTP    *http.Client
	// Timeout of one call; default 10 s.
	Timeout time.Duration
}

func (m *HTTPMessenger) partner() trade.Partner {
	return trade.Partner{Name: "the messenger", BaseURL: m.BaseURL, Token: m.Token, HTTP: m.HTTP, Timeout: m.Timeout}
}

var _ Messenger = (*HTTPMessenger)(nil)

// accepted is the provider's answer.
type accepted struct {
	ID string `json:"id"`
}

// Send is POST /messenger/messages.
func (m *HTTPMessenger) Send(ctx context.Context, message Message) (string, error) {
	var a accepted
	status, err := m.partner().Call(ctx, http.MethodPost, "/messenger/messages", message, &a)
	return a.ID, trade.PartnerVerdict(status, err)
}

// Sent is GET /messenger/messages/{key}.
func (m *HTTPMessenger) Sent(ctx context.Context, key string) (id string, known bool, err error) {
	var a accepted
	status, err := m.partner().Call(ctx, http.MethodGet, "/messenger/messages/"+url.PathEscape(key), nil, &a)
	if status == http.StatusNotFound {
		return "", false, nil
	}
	return a.ID, err == nil, trade.PartnerVerdict(status, err)
}
