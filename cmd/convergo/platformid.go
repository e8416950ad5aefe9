package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/relay"
	"github.com/convergo/convergo/trade"
)

// platformFlags say which platform a process belongs to, and what becomes of the events of others.
type platformFlags struct {
	PlatformID string   `placeholder:"ID" help:"Name of this platform on its events, the same in all its processes (default: that of the secrets)."`
	TakeFrom   []string `placeholder:"ID,..." help:"Other platforms whose events are applied too, such as an id that this one had before."`
	PassOver   []string `placeholder:"ID,..." help:"Platforms whose events are passed over: what one that was on this prefix by mistake has left."`
}

func (p platformFlags) validatePlatform() error {
	for flag, ids := range map[string][]string{"--platform-id": {p.PlatformID}, "--take-from": p.TakeFrom, "--pass-over": p.PassOver} {
		for _, id := range ids {
			if err := convergo.ValidateOrigin(id); err != nil {
				return fmt.Errorf("%s: %w", flag, err)
			}
		}
	}
	return nil
}

// platform is the id of the platform that the secrets belong to. Secrets of before it was kept in them determine it: all who share
// them find the same one, whether or not their file can be written to.
func (s secrets) platform() string {
	if s.PlatformID != "" {
		return s.PlatformID
	}
	h := hmac.New(sha256.New, []byte(s.ChannelSecret))
	h.Write([]byte("convergo platform id"))
	return "p-" + hex.EncodeToString(h.Sum(nil)[:platformBytes])
}

const platformBytes = 10

// newPlatformID is a random one.
func newPlatformID() string { return "p-" + hex.EncodeToString(random()[:platformBytes]) }

// keepPlatformID writes the id into the folder's own secrets if they are of before there was one, so that it outlives a change of
// the secret that it comes from. A file of --secrets is left alone: it is somebody's, with an owner and a mode that a renamed file
// would not have, and several processes start at once on it.
func (f *folder) keepPlatformID() error {
	if f.shared || f.Secrets.PlatformID != "" {
		return nil
	}
	text, err := os.ReadFile(f.file(secretsFile))
	if err != nil {
		return err
	}
	var all map[string]json.RawMessage // also what this version does not know
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("secrets: %w", err)
	}
	if all["platform_id"], err = json.Marshal(f.Secrets.platform()); err != nil {
		return err
	}
	if text, err = json.MarshalIndent(all, "", "  "); err != nil {
		return err
	}
	f.Secrets.PlatformID = f.Secrets.platform()
	return writeDurably(f.file(secretsFile), text)
}

// origin is the id on the events of this platform. The broker inside a process is nobody else's, and needs none.
func (p *platform) origin() string {
	switch {
	case p.cfg.embedded():
		return ""
	case p.cfg.PlatformID != "":
		return p.cfg.PlatformID
	}
	return p.folder.Secrets.platform()
}

// place says where the events are, for the operators who read the log.
func (b backends) place() string {
	return fmt.Sprintf("%s, prefix %q", redacted(b.brokerURL()), b.prefix())
}

// prefix is what the names on the broker begin with; "" when the address cannot be read.
func (b backends) prefix() string {
	a, err := parseAddress(b.brokerURL())
	if err != nil {
		return ""
	}
	if prefix := a.Query().Get("prefix"); prefix != "" {
		return prefix
	}
	return defaultPrefix(a.Scheme)
}

// foreign is the first of this process's consumers that stands still because of another platform's event; nil when none does.
func (p *platform) foreign() *inbox.Foreign {
	for _, u := range p.units {
		if u.inbox == nil {
			continue
		}
		if f := u.inbox.Foreign(); f != nil {
			return f
		}
	}
	return nil
}

// unshared is the way to the broker until another platform is found there: from then on events wait in their outboxes, because whatever
// was sent would lie among the other's.
type unshared struct {
	relay.Publisher
	platform *platform
}

// Publish implements relay.Publisher.
func (a unshared) Publish(ctx context.Context, events []convergo.Event) []error {
	f := a.platform.foreign()
	if f == nil {
		return a.Publisher.Publish(ctx, events)
	}
	errs := make([]error, len(events))
	for i := range errs {
		errs[i] = convergo.Unreachable(fmt.Errorf("not sent: platform %s is at the same place on the broker: see the log of consumer %s", f.Other, f.Consumer))
	}
	return errs
}

// truthful answers the probes with no while another platform's event stands in the way. Anybody may ask: where the broker is stands in the
// log only.
func (p *platform) truthful(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := p.foreign()
		probe := (r.URL.Path == "/readyz" || r.URL.Path == "/flowz") && (r.Method == http.MethodGet || r.Method == http.MethodHead)
		if f == nil || !probe {
			next.ServeHTTP(w, r)
			return
		}
		trade.WriteProblem(w, trade.NewProblem(http.StatusServiceUnavailable, "", fmt.Sprintf(
			"%s stands still: an event of platform %s has arrived under prefix %q, and this is platform %s", f.Consumer, f.Other, p.cfg.prefix(), f.Own,
		), "see the log; give one of them another prefix and start this one with --pass-over and the other's id, or, "+
			"if they are one platform, give both the same secrets and start them again"))
	})
}
