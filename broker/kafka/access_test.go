package kafka

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/testserver"
)

func TestTLSAndPasswords(t *testing.T) {
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	trust := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	trust.RootCAs.AddCert(web.Certificate())
	const password = "wonderfully-secret"
	_, cfg := fake(t, kfake.TLS(&tls.Config{Certificates: web.TLS.Certificates, MinVersion: tls.VersionTLS12}), kfake.EnableSASL(),
		kfake.Superuser("PLAIN", "app", password), kfake.Superuser("SCRAM-SHA-256", "app", password), kfake.Superuser("SCRAM-SHA-512", "app", password))
	cfg.TLS, cfg.User, cfg.Password, cfg.Timeout = trust, "app", password, 2*time.Second
	for _, mechanism := range []string{"plain", "scram-sha-256", "scram-sha-512"} {
		cfg := cfg
		cfg.SASL = mechanism
		b := open(t, cfg)
		publish(t, b, event("O-1", 1))
		fetch(t, subscribe(t, b, "payment-"+mechanism), 1)

		wrong := cfg
		wrong.Password = password + "-not"
		untrusted := cfg
		untrusted.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		for name, cfg := range map[string]Config{"wrong password": wrong, "untrusted certificate": untrusted} {
			_, err := Open(t.Context(), cfg)
			if err == nil || convergo.VerdictOf(err) != convergo.Outage || strings.Contains(err.Error(), password) {
				t.Errorf("%s, %s: %v", mechanism, name, err)
			}
		}
	}
	cfg.SASL = "gssapi"
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "plain, scram-sha-256, scram-sha-512") {
		t.Errorf("an unknown mechanism: %v", err)
	}
}

func alter(t *testing.T, b *Broker, name, value string) {
	t.Helper()
	answers, err := b.admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: name, Value: kadm.StringPtr(value)}}, b.topicName("order"))
	if err == nil {
		err = answers[0].Err
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestCaseB07AMessageThatTheTopicIsTooSmallForIsFoundAndItsNeighborsGoThrough(t *testing.T) {
	cfg := settings(testserver.Shared(t, &servers, "kafka", testserver.OpenKafka).Addr)
	cfg.Partitions = 1 // all in one batch
	b := open(t, cfg)
	publish(t, b, event("m-0", 1))
	alter(t, b, "max.message.bytes", "20000") // somebody lowers it after it was looked at
	large := event("m-2", 1)
	large.Payload = make([]byte, 60_000)
	if _, err := rand.Read(large.Payload); err != nil { // what compresses well could fit
		t.Fatal(err)
	}
	events := []convergo.Event{event("m-1", 1), large, event("m-3", 1), event("m-2", 2), event("m-3", 2)}
	errs := b.Publish(t.Context(), events)
	for i, failed := range []bool{false, true, false, true, false} {
		if (errs[i] != nil) != failed {
			t.Errorf("%s: error %v, want one: %v", events[i].Key, errs[i], failed)
		}
	}
	if convergo.VerdictOf(errs[1]) != convergo.Park || convergo.VerdictOf(errs[3]) == convergo.Park {
		t.Errorf("verdicts: %v; %v", errs[1], errs[3])
	}
	// From now on the limit is known, and nothing is sent to find out.
	err := b.Publish(t.Context(), []convergo.Event{large})[0]
	if convergo.VerdictOf(err) != convergo.Park || !strings.Contains(err.Error(), "> "+strconv.Itoa(20_000-overhead)) {
		t.Errorf("error %v", err)
	}
}

func TestTheCheckSaysWhatALaxTopicLoses(t *testing.T) {
	cfg := settings(testserver.Shared(t, &servers, "kafka", testserver.OpenKafka).Addr)
	b := open(t, cfg)
	publish(t, b, event("O-1", 1))
	of := func(name string) (of []string) {
		found, err := b.Check(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range found {
			if w.Loses == "" || w.Want == "" || w.Value == "" {
				t.Errorf("%+v says too little", w)
			}
			if setting, ok := strings.CutSuffix(w.Setting, " of topic "+name); ok {
				of = append(of, setting)
			}
		}
		return of
	}
	name := b.topicName("order")
	if got := of(name); !slices.Equal(got, []string{"replication", "min.insync.replicas"}) {
		t.Errorf("one node, a topic as we make it: %v", got)
	}
	if got := of(positions); b.cfg.Replication == 1 && len(got) > 0 && !slices.Contains(got, "replication") {
		t.Errorf("the positions of groups on one node: %v", got)
	}
	for setting, value := range map[string]string{
		"retention.ms": "60000", "retention.bytes": "1000000", "unclean.leader.election.enable": "true", "cleanup.policy": "compact",
		"max.message.bytes": "1000",
	} {
		alter(t, b, setting, value)
	}
	within(t, func() error { // the cluster shows a changed setting a moment later
		got := of(name)
		for _, want := range []string{"retention.ms", "retention.bytes", "unclean.leader.election.enable", "cleanup.policy", "max.message.bytes"} {
			if !slices.Contains(got, want) {
				return fmt.Errorf("%s is lax and not among %v", want, got)
			}
		}
		return nil
	})
}

func TestPendingCountsWhatAConsumerIsNotDoneWith(t *testing.T) {
	_, cfg := fake(t)
	cfg.AckWait = time.Minute
	b := open(t, cfg)
	s := subscribe(t, b, "payment")
	for v := int64(1); v <= 5; v++ {
		publish(t, b, event("O-1", v))
	}
	for _, d := range fetch(t, s, 3) {
		if err := d.Ack(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	pending, err := b.Pending(t.Context())
	if err != nil || pending["payment"] != 2 {
		t.Errorf("pending %v, %v", pending, err)
	}
	if text := fmt.Sprint(b.Durability()); !strings.Contains(text, "min.insync.replicas") {
		t.Error(text)
	}
}
