package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// probeCommand is `convergo probe`: a container of the program alone has no other one to ask whether it is well.
type probeCommand struct {
	Addr string `default:"127.0.0.1:8080" placeholder:"HOST:PORT" help:"Address that the process listens on (default: ${default})."`
	Path string `arg:"" optional:"" default:"/readyz" help:"What to ask: /readyz, /healthz or /flowz (default: ${default})."`
}

// Run fails when the process does not answer, or answers no.
func (c probeCommand) Run(ctx context.Context, s streams) error {
	if !strings.HasPrefix(c.Path, "/") {
		return fmt.Errorf("the path %q does not begin with a '/'", c.Path)
	}
	asked := serveCommand{Addr: c.Addr}.local() + c.Path
	if _, err := url.Parse(asked); err != nil {
		return fmt.Errorf("--addr %q is not HOST:PORT", c.Addr)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, asked, nil)
	if err != nil {
		return err
	}
	answer, err := direct().Do(request)
	if err != nil {
		return fmt.Errorf("%w; --addr is where the process listens", err)
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	text, err := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("%s: %w", asked, err)
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", asked, answer.Status, strings.TrimSpace(string(text)))
	}
	_, err = s.out.Write(text)
	return err
}

// direct asks as one process of a platform asks another: past the proxies of the environment, and who answers is who was asked.
func direct() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// secretsCommand is `convergo secrets`: what all processes of a platform share, before the first of them runs.
type secretsCommand struct {
	Data string `default:"convergo-data" type:"path" placeholder:"DIR" help:"Folder for secrets.json; made when missing (default: ${default})."`
}

// Run makes the file when it is missing; one that is there is read and stays as it is.
func (c secretsCommand) Run(s streams) error {
	if err := os.MkdirAll(c.Data, 0o700); err != nil {
		return err
	}
	if _, err := loadSecrets(c.Data); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.out, (&folder{path: c.Data}).file(secretsFile))
	return err
}
