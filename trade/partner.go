package trade

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/convergo/convergo"
)

// Partner is somebody outside whom a service calls over HTTP with JSON: a carrier, a messenger. BaseURL is required.
type Partner struct {
	Name    string // for errors, for example "the carrier"
	BaseURL string // for example "https://carrier.example", without a trailing slash
	// Token is sent as "Authorization: Bearer …"; empty sends none. It never stands in an error.
	Token string
	HTTP  *http.Client // default http.DefaultClient
	// Timeout of one call; default 10 s.
	Timeout time.Duration
}

const maxPartnerAnswer = 64 << 10

// Call makes one request and reads the answer into out. status is 0 when there was no answer. The error carries no
// verdict yet, because a 404 may be what was asked for: see PartnerVerdict.
func (p Partner) Call(ctx context.Context, method, path string, in, out any) (status int, err error) {
	timeout, client := p.Timeout, p.HTTP
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
	request, err := http.NewRequestWithContext(ctx, method, p.BaseURL+path, bytes.NewReader(body))
	if err != nil {
		return 0, convergo.Permanent(fmt.Errorf("%s %s: %w", method, path, err))
	}
	request.Header.Set("Content-Type", "application/json")
	if p.Token != "" {
		request.Header.Set("Authorization", "Bearer "+p.Token)
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", method, path, err)
	}
	defer func() { _ = answer.Body.Close() }()
	read, err := io.ReadAll(io.LimitReader(answer.Body, maxPartnerAnswer+1))
	if err == nil && len(read) > maxPartnerAnswer {
		err = errors.New("answer is too long")
	}
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if answer.StatusCode/100 != 2 {
		said := strings.ToValidUTF8(string(read[:min(len(read), 200)]), "")
		return answer.StatusCode, fmt.Errorf("%s %s: %s answered %d: %s", method, path, p.Name, answer.StatusCode, said)
	}
	if err := json.Unmarshal(read, out); err != nil {
		return 0, fmt.Errorf("%s %s: answer cannot be read: %w", method, path, err)
	}
	return answer.StatusCode, nil
}

// PartnerVerdict judges a failed call: a 4xx is a definite refusal, except those that say "later" or "not you", which are
// no answer to this request.
func PartnerVerdict(status int, err error) error {
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
