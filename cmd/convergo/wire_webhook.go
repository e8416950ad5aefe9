package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"go.yaml.in/yaml/v3"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/webhook"
	"github.com/convergo/convergo/inbox"
)

// endpointsFile is what --broker webhook:FILE names. Texts may hold ${NAME} from the environment.
type endpointsFile struct {
	Endpoints []struct {
		Name     string   `yaml:"name"`
		URL      string   `yaml:"url"`
		Secrets  []string `yaml:"secrets"`  // whsec_…, the newest first
		Subjects []string `yaml:"subjects"` // topic.Type or topic.*; none means all
		Disabled bool     `yaml:"disabled"`
	} `yaml:"endpoints"`
	Allow     []string `yaml:"allow"` // networks that are not public and may be called all the same
	CA        string   `yaml:"ca"`    // file of an authority of one's own, trusted beside those of the system
	PlainHTTP bool     `yaml:"plain-http"`
}

// postsOnly is a webhook as a broker that nobody can subscribe to.
type postsOnly struct{ *webhook.Broker }

func (postsOnly) Subscribe(context.Context, string, []convergo.Subject) (inbox.Source, error) {
	return nil, errors.New("webhooks are posts to others: no service can subscribe to them; name a broker")
}

func connectWebhook(ctx context.Context, a address, q *query, o brokerOptions) (*connected, error) {
	if err := q.end(); err != nil {
		return nil, err
	}
	path := a.Opaque
	if path == "" {
		path = a.Path
	}
	cfg, err := readEndpoints(path)
	if err != nil {
		return nil, err
	}
	cfg.Unclaimed, cfg.Log, cfg.Probe = o.unclaimed, o.log, o.probe
	b, err := webhook.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &connected{broker: postsOnly{b}, close: func() error { b.Close(); return nil }}, nil
}

func readEndpoints(path string) (cfg webhook.Config, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return cfg, err
	}
	var raw any
	if err := yaml.Unmarshal(text, &raw); err != nil {
		return cfg, fmt.Errorf("%s: %w", path, err)
	}
	if raw, err = fromEnvironment(raw); err != nil {
		return cfg, fmt.Errorf("%s: %w", path, err)
	}
	if text, err = yaml.Marshal(raw); err != nil {
		return cfg, err
	}
	var file endpointsFile
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		return cfg, fmt.Errorf("%s: %w", path, err)
	}
	cfg.PlainHTTP = file.PlainHTTP
	if file.CA != "" {
		if cfg.RootCAs, err = trustedToo(file.CA); err != nil {
			return cfg, fmt.Errorf("%s: ca: %w", path, err)
		}
	}
	for _, network := range file.Allow {
		prefix, err := netip.ParsePrefix(network)
		if err != nil {
			return cfg, fmt.Errorf("%s: allow: %w", path, err)
		}
		cfg.Allow = append(cfg.Allow, prefix)
	}
	for _, e := range file.Endpoints {
		endpoint := webhook.Endpoint{Name: e.Name, URL: e.URL, Disabled: e.Disabled}
		for _, secret := range e.Secrets {
			parsed, err := webhook.ParseSecret(secret)
			if err != nil {
				return cfg, fmt.Errorf("%s: endpoint %s: %w", path, e.Name, err)
			}
			endpoint.Secrets = append(endpoint.Secrets, parsed)
		}
		if endpoint.Subjects, err = parseSubjects(e.Subjects); err != nil {
			return cfg, fmt.Errorf("%s: endpoint %s: %w", path, e.Name, err)
		}
		cfg.Endpoints = append(cfg.Endpoints, endpoint)
	}
	return cfg, nil
}

// trustedToo are the system's authorities and those of the file.
func trustedToo(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil { // a machine without any
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate", file)
	}
	return pool, nil
}
