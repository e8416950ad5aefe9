package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	amqp "github.com/rabbitmq/amqp091-go"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/broker/rocketmq"
	"github.com/convergo/convergo/inbox"
)

// What a server or its client says when it refuses us ("Authorization Violation", "unknown authority") names no setting of ours. Here it is
// told which part of the address is meant, and what can be done.

// refused is what a person can do about an error at the address: a certificate or a log-in that is not accepted. "" when it is something else.
func (a address) refused(err error) string {
	if a.Scheme == "webhook" {
		return refusedByEndpoint(err)
	}
	if what := a.certificate(err); what != "" {
		return what
	}
	switch a.Scheme {
	case "nats":
		return a.refusedByNATS(err)
	case "redis":
		return a.refusedByRedis(err)
	case "kafka":
		return a.refusedByKafka(err)
	case "amqp":
		return a.refusedByRabbitMQ(err)
	case "rocketmq":
		if errors.Is(err, rocketmq.ErrNotAllowed) {
			return "the servers refuse ACCESS:SECRET of the address, or that account may not do this: correct them, or give it the right there"
		}
	}
	return ""
}

// unopened is what a person can do about an error of the first connection to the address; it is asked about nothing else, because a server
// that is restarted hangs up too.
func (a address) unopened(err error) string {
	if what := a.refused(err); what != "" {
		return what
	}
	names := a.tlsNames()
	switch text := err.Error(); {
	case errors.As(err, new(tls.RecordHeaderError)), errors.Is(err, nats.ErrSecureConnWanted), a.tls() && strings.Contains(text, "client is using TLS"):
		return "what answers there speaks no TLS: name the port that does, or leave out " + names.all
	case a.tls() && (a.Scheme != "postgres" || a.Query().Has("sslmode")) && errors.Is(err, context.DeadlineExceeded):
		return "no answer in time: if no TLS is spoken at this port, name the one where it is, or leave out " + names.all
	case !hungUp(text) || a.Scheme == "mysql" && !a.tls():
		return ""
	case !a.tls() && a.Scheme == "kafka" && a.User == nil:
		return "the server hung up at once: if it asks for TLS there, write ?" + names.on + "; if it asks for a log-in, kafka://USER:PASSWORD@HOST/?sasl=plain"
	case !a.tls():
		return "the server hung up at once: if it speaks TLS at this port, write ?" + names.on
	case a.Scheme == "kafka" && a.Query().Get("sasl") == "":
		return "the server hung up: if it asks for a log-in there, write kafka://USER:PASSWORD@HOST/?sasl=plain, scram-sha-256 or scram-sha-512"
	case a.Query().Get(names.cert) == "":
		return "the server hung up: if it asks for a client certificate, name one with ?" + names.pair
	}
	if old := a.outOfTime(time.Now()); old != "" {
		return "the server hung up: " + old
	}
	return "the server hung up: it may not accept the client certificate of ?" + names.cert
}

// hungUp tells whether the other side ended the connection. Not all clients keep the error behind their text.
func hungUp(text string) bool {
	for _, words := range []string{
		"EOF", "connection reset by peer", "broken pipe", "closed the connection immediately", "tls alert record", "frame size exceeds", "invalid connection",
		"bad connection",
	} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

func (a address) refusedByNATS(err error) string {
	switch {
	case errors.Is(err, nats.ErrPermissionViolation):
		return "the account may not use the subject that the error names: let it publish and subscribe to that on the server"
	case !errors.Is(err, nats.ErrAuthorization) && !errors.Is(err, nats.ErrAuthExpired) && !errors.Is(err, nats.ErrAuthRevoked) &&
		!errors.Is(err, nats.ErrAccountAuthExpired):
		return ""
	}
	for _, file := range []string{"credentials", "nkey"} {
		if a.Query().Has(file) {
			return "the server does not let in who the file of ?" + file + " names: name another file, or add him there"
		}
	}
	if a.User == nil && !a.Query().Has("token") {
		return "the server asks for a log-in: write nats://USER:PASSWORD@HOST, ?token=TOKEN, ?nkey=FILE or ?credentials=FILE"
	}
	if _, password := a.account(); password != "" {
		return "the server refuses USER:PASSWORD of the address: correct them, or add the user there"
	}
	return "the server refuses the token of the address: correct it; a user's password stands behind a ':'"
}

func (a address) refusedByRedis(err error) string {
	const forms = "write redis://:PASSWORD@HOST for the server's password (requirepass), redis://USER:PASSWORD@HOST for a user of its access list"
	text := err.Error()
	switch {
	case strings.Contains(text, "all sentinels") && (strings.Contains(text, "WRONGPASS") || strings.Contains(text, "NOAUTH")):
		return "the Sentinels ask for a password of their own, and it is not this one: ?sentinel_password=PASSWORD, with ?sentinel_user=USER if need be"
	case strings.Contains(text, "all sentinels") && strings.Contains(text, "unknown command"):
		return "what answers there is no Sentinel: name the Sentinels, at their own port, or leave out ?primary"
	case strings.Contains(text, "all sentinels") && errors.Is(err, goredis.Nil):
		return "the Sentinels watch no primary of the name in ?primary: write the one that stands in their `sentinel monitor NAME …`"
	case goredis.HasErrorPrefix(err, "WRONGPASS"):
		return "the server refuses USER:PASSWORD of the address: correct them; " + forms
	case goredis.HasErrorPrefix(err, "NOAUTH"):
		return "the server asks for a password: " + forms
	case goredis.HasErrorPrefix(err, "AUTH "):
		return "the server has no password for its default user: leave it out, or " + forms
	case goredis.HasErrorPrefix(err, "NOPERM"):
		return "the user of the address may not do this: on the server, ACL SETUSER USER ~PREFIX:* +@all -@admin -@dangerous +info"
	}
	return ""
}

func (a address) refusedByKafka(err error) string {
	const mechanisms = "plain, scram-sha-256 or scram-sha-512"
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return "the cluster refuses USER:PASSWORD of the address under ?sasl=" + a.Query().Get("sasl") + ": correct them, or add the user for that mechanism there"
	case errors.Is(err, kerr.UnsupportedSaslMechanism), errors.Is(err, kerr.IllegalSaslState):
		return "the cluster does not take ?sasl=" + a.Query().Get("sasl") + " at this port: write another mechanism (" + mechanisms + "), or name another port"
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return "the user of the address may not do this: give him the right, with kafka-acls --add --allow-principal User:NAME"
	}
	return ""
}

func (a address) refusedByRabbitMQ(err error) string {
	var said *amqp.Error
	if !errors.As(err, &said) {
		return ""
	}
	switch {
	case said.Reason == amqp.ErrSASL.Reason:
		return "the server takes no log-in by certificate (its plugin rabbitmq_auth_mechanism_ssl does): write amqp://USER:PASSWORD@HOST"
	case said.Reason == amqp.ErrCredentials.Reason && a.User == nil && a.Query().Has("cert"):
		return "the server has no user of the name in the certificate of ?cert: rabbitmqctl add_user, or write amqp://USER:PASSWORD@HOST"
	case said.Reason == amqp.ErrCredentials.Reason && a.User == nil:
		return "the address names no user, and the server refuses guest with the password guest: write amqp://USER:PASSWORD@HOST"
	case said.Reason == amqp.ErrCredentials.Reason:
		return "the server refuses USER:PASSWORD of the address: correct them, or rabbitmqctl add_user"
	case said.Code == amqp.NotAllowed && strings.Contains(said.Reason, "vhost"):
		return "the virtual host is not there or not open to the user: correct /VHOST of the address, or rabbitmqctl add_vhost and set_permissions"
	case said.Code == amqp.AccessRefused:
		return "the user of the address may not do this: rabbitmqctl set_permissions -p VHOST USER '.*' '.*' '.*'"
	}
	return ""
}

// advised puts the advice before the error, if there is one.
func advised(advice string, err error) error {
	if advice == "" {
		return err
	}
	return fmt.Errorf("%s: %w", advice, err)
}

// Publish implements relay.Publisher: of a password that was changed meanwhile, or a right that was taken away, the address is told too.
func (c *connected) Publish(ctx context.Context, events []convergo.Event) []error {
	errs := c.broker.Publish(ctx, events)
	for i, err := range errs {
		errs[i] = c.told(err)
	}
	return errs
}

// Subscribe returns the source of a consumer's events.
func (c *connected) Subscribe(ctx context.Context, consumer string, subjects []convergo.Subject) (inbox.Source, error) {
	source, err := c.broker.Subscribe(ctx, consumer, subjects)
	return source, c.told(err)
}

// told is an error of the broker, with its address and what can be done when it refuses us.
func (c *connected) told(err error) error {
	if err == nil {
		return nil
	}
	if what := c.at.refused(err); what != "" {
		return fmt.Errorf("broker %s: %s: %w", c.shown, what, err)
	}
	return err
}

// silenced lets the client of Redis write nothing by itself. It has one logger for all its connections, which is set before there is any.
var silenced = sync.OnceFunc(func() { goredis.SetLogger(quiet{}) })

// quiet takes what the client of Redis writes to standard error by itself. The same errors come back from its calls.
type quiet struct{}

// Printf does nothing.
func (quiet) Printf(context.Context, string, ...any) {}
