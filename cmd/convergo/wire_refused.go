package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"

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

// certificate is what can be done about a certificate, the server's or ours.
func (a address) certificate(err error) string {
	names := a.tlsNames()
	known := a.Query().Get(names.ca)
	var unusable x509.CertificateInvalidError
	switch text := err.Error(); {
	case errors.As(err, new(x509.HostnameError)):
		return "the server's certificate is for another host: write a name that it is for as the host" + names.host
	case errors.As(err, new(x509.UnknownAuthorityError)) && known == "":
		return "the server's certificate is signed by nobody whom this machine trusts: name the file of its authority with ?" + names.ca + "=FILE"
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return fmt.Sprintf("the server's certificate is not signed by the authority of ?%s: name the file of the one that signed it", names.ca)
	case errors.As(err, &unusable):
		return "the server's certificate cannot be used: have another one issued, or, if it is not expired, set this machine's clock right"
	case !strings.Contains(text, "remote error: tls: "):
		return ""
	case a.Query().Get(names.cert) == "" && strings.Contains(text, "certificate"), a.Query().Get(names.cert) == "" && strings.Contains(text, "handshake failure"):
		return "the server asks for a client certificate: name one with ?" + names.pair
	case strings.Contains(text, "certificate"):
		return fmt.Sprintf("the server does not accept the client certificate of ?%s: name one that is signed by an authority that it trusts", names.cert)
	}
	return ""
}

// tlsNames are the parameters of an address that are about TLS.
type tlsNames struct{ ca, cert, pair, on, all, host string }

func (a address) tlsNames() tlsNames {
	if a.Scheme == "postgres" {
		return tlsNames{
			ca: "sslrootcert", cert: "sslcert", pair: "sslcert=FILE&sslkey=FILE", on: "sslmode=verify-full&sslrootcert=FILE", all: "?sslmode",
			host: ", or do not compare them, with ?sslmode=verify-ca",
		}
	}
	return tlsNames{
		ca: "ca", cert: "cert", pair: "cert=FILE&key=FILE", on: "tls=true, or ?ca=FILE for an authority of your own", all: "?tls, ?ca, ?cert and ?server_name",
		host: ", or as ?server_name=NAME",
	}
}

// tls tells whether the address asks for it.
func (a address) tls() bool {
	query := a.Query()
	if a.Scheme == "postgres" {
		return query.Get("sslmode") != "disable"
	}
	return query.Get("tls") == "true" || query.Has("ca") || query.Has("cert") || query.Has("server_name")
}

// refusedByEndpoint is about keys of the file that webhook: names.
func refusedByEndpoint(err error) string {
	switch text := err.Error(); {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "the endpoint's certificate is signed by nobody whom this machine trusts: name the file of its authority in that file, as ca"
	case errors.As(err, new(x509.HostnameError)):
		return "the endpoint's certificate is for another host: write a name that it is for in its url"
	case errors.As(err, new(x509.CertificateInvalidError)):
		return "the endpoint's certificate cannot be used: it must be issued anew, or, if it is not expired, this machine's clock set right"
	case strings.Contains(text, "remote error: tls: ") && strings.Contains(text, "certificate"):
		return "the endpoint asks for a client certificate, which is not sent to any: let it go by the signature"
	case strings.Contains(text, " answered 401"), strings.Contains(text, " answered 403"):
		return "the endpoint does not accept the signature: let its secret be among the secrets of that file, and both clocks be right"
	}
	return ""
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
