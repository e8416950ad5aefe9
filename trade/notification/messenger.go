package notification

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/convergo/convergo"
)

// HTTPMessenger is a Messenger over HTTP. BaseURL is required.
type HTTPMessenger struct {
	BaseURL string // for example "https://messenger.example", without a trailing slash
	HTTP    *http.Client
	// Timeout of one call; default 10 s.
	Timeout time.Duration
}

var _ Messenger = (*HTTPMessenger)(nil)

const maxAnswer = 64 << 10

// accepted is the provider's answer.
type accepted struct {
	ID string `json:"id"`
}

// Send is POST /messenger/messages.
func (m *HTTPMessenger) Send(ctx context.Context, message Message) (string, error) {
	var a accepted
	status, err := m.call(ctx, http.MethodPost, "/messenger/messages", message, &a)
	return a.ID, verdict(status, err)
}

// Sent is GET /messenger/messages/{key}.
func (m *HTTPMessenger) Sent(ctx context.Context, key string) (id string, known bool, err error) {
	var a accepted
	status, err := m.call(ctx, http.MethodGet, "/messenger/messages/"+url.PathEscape(key), nil, &a)
	if status == http.StatusNotFound {
		return "", false, nil
	}
	return a.ID, err == nil, verdict(status, err)
}

// verdict: a 4xx is a definite refusal, except those that say "later" or "not you", which are no answer to this request.
func verdict(status int, err error) error {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return convergo.Unreachable(err)
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return err
	}
	if status/100 == 4 {
		return convergo.Permanent(err)
	}
	return err
}

// call makes one request; status is 0 when there was no answer.
func (m *HTTPMessenger) call(ctx context.Context, method, path string, in, out any) (status int, err error) {
	timeout, client := m.Timeout, m.HTTP
	if timeout <= 0 {
		timeout = 10 * time.Second
	}
	if client == nil {
		client = http.DefaultClient
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var body []byte
	if in != nil {
		if body, err = json.Marshal(in); err != nil {
			return 0, fmt.Errorf("%s %s: %w", method, path, err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, m.BaseURL+path, bytes.NewReader(body))
	if err != nil {
		return 0, convergo.Permanent(fmt.Errorf("%s %s: %w", method, path, err))
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer func() { _ = answer.Body.Close() }()
	read, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err == nil && len(read) > maxAnswer {
		err = errors.New("answer is too long")
	}
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if answer.StatusCode/100 != 2 {
		said := strings.ToValidUTF8(string(read[:min(len(read), 200)]), "")
		return answer.StatusCode, fmt.Errorf("%s %s: the messenger answered %d: %s", method, path, answer.StatusCode, said)
	}
	if err := json.Unmarshal(read, out); err != nil {
		return 0, fmt.Errorf("%s %s: answer cannot be read: %w", method, path, err)
	}
	return answer.StatusCode, nil
}
