package main

import (
	"crypto/tls"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/internal/freeport"
	"github.com/convergo/convergo/testserver"
)

const sentinelPassword = password + "-of-sentinels"

// redisUnderTLS starts a server whose users, replicas and Sentinels come under TLS with a certificate, and with a password.
func redisUnderTLS(t *testing.T, shown identity, p papers, options ...string) (s *testserver.Redis, secure string) {
	t.Helper()
	port := must[int](t)(freeport.Next())
	s = testserver.Own(t, testserver.OpenRedisWith(append([]string{
		"--tls-port", fmt.Sprint(port), "--tls-cert-file", shown.cert, "--tls-key-file", shown.key, "--tls-ca-cert-file", p.ca,
		"--tls-replication", "yes", "--masterauth", password,
	}, options...)...))
	admin := redisAt(t, s.Addr, "")
	admin("ACL", "SETUSER", "app", "on", ">"+password, "~*", "+@all")
	admin("CONFIG", "SET", "requirepass", password)
	return s, fmt.Sprint("127.0.0.1:", port)
}

// sentinelUnderTLS starts a Sentinel that has a password of its own, and to which all come under TLS with a certificate.
func sentinelUnderTLS(t *testing.T, shown identity, p papers, watch map[string]string, lines ...string) *testserver.Sentinel {
	t.Helper()
	ours := must[tls.Certificate](t)(tls.LoadX509KeyPair(p.clientCert, p.clientKey))
	return testserver.Own(t, func() (*testserver.Sentinel, error) {
		return testserver.OpenSentinel(testserver.SentinelOptions{
			Watch: watch, Password: sentinelPassword, ServerPassword: password,
			TLS:   &tls.Config{Certificates: []tls.Certificate{ours}, InsecureSkipVerify: true}, // it may show what is unfit
			Lines: append([]string{"tls-cert-file " + shown.cert, "tls-key-file " + shown.key, "tls-ca-cert-file " + p.ca}, lines...),
		})
	})
}

// throughSentinel is the address of a primary that the Sentinel there names, with what stands behind it.
func throughSentinel(at, primary, more string) string {
	return "redis://app:" + password + "@" + at + "/?primary=" + primary + "&sentinel_password=" + sentinelPassword + more
}

func TestEachAddressOfRedisThroughSentinelsUnderTLSOpensOrSaysWhatToDo(t *testing.T) {
	t.Parallel()
	p := papersFor(t)
	good := identity{cert: p.cert, key: p.key}
	_, secure := redisUnderTLS(t, good, p)
	watch, unfit := map[string]string{"shop": secure}, p.unfit(t)
	for _, shown := range unfit {
		_, watch[shown.name] = redisUnderTLS(t, shown, p)
	}
	sentinel := sentinelUnderTLS(t, good, p, watch)
	local, showing := "localhost:"+portOf(t, sentinel.Addr), "&"+p.showing()
	watched := func(more string) string { return throughSentinel(sentinel.Addr, "shop", more) }
	passes(t, watched(showing))
	passes(t, throughSentinel(local, "shop", showing+"&server_name="+serverName)) // which is a name of both
	refused := map[string]string{
		watched(""):                                      "if it speaks TLS at this port, write ?tls=true",
		watched("&tls=true"):                             "the Sentinel's certificate is signed by nobody whom this machine trusts: name the file of its authority with ?ca=FILE",
		watched("&ca=" + p.strange):                      "the Sentinel's certificate is not signed by the authority of ?ca: name the file",
		watched("&" + p.trusting()):                      "name one with ?cert=FILE&key=FILE",
		watched("&" + p.lying()):                         "accept the client certificate of ?cert",
		watched("&" + p.stale(t)):                        "the client certificate of ?cert expired on " + expired(),
		throughSentinel(local, "shop", showing):          "or, if the Sentinels and the servers have one in common, as ?server_name=NAME",
		throughSentinel(sentinel.Addr, "stall", showing): "the Sentinels watch no primary of the name in ?primary",
		strings.Replace(watched(showing), sentinelPassword, wrongPassword, 1):            "the Sentinels ask for a password of their own, and it is not this one",
		strings.Replace(watched(showing), "&sentinel_password="+sentinelPassword, "", 1): "the Sentinels ask for a password of their own, and it is not this one",
		strings.Replace(watched(showing), ":"+password, ":"+wrongPassword, 1):            "the server refuses USER:PASSWORD of the address: correct them",
	}
	for _, shown := range unfit {
		refused[throughSentinel(sentinel.Addr, shown.name, showing)] = shown.told("the certificate of the server that the Sentinels name", "?ca, ?cert")
		itself := sentinelUnderTLS(t, shown, p, watch)
		refused[throughSentinel(itself.Addr, "shop", showing)] = shown.told("the Sentinel's certificate", "?ca, ?cert")
	}
	for address, says := range refused {
		t.Run("refuses", func(t *testing.T) { toldOfBroker(t, address, says) })
	}
}

func TestRedisThroughSentinelsUnderTLSGoesOnWithTheReplicaWhenThePrimaryIsGone(t *testing.T) {
	t.Parallel()
	p := papersFor(t)
	good := identity{cert: p.cert, key: p.key}
	primary, secure := redisUnderTLS(t, good, p)
	_, second := redisUnderTLS(t, good, p, "--replicaof", "127.0.0.1", portOf(t, secure))
	sentinel := sentinelUnderTLS(t, good, p, map[string]string{"shop": secure},
		"sentinel down-after-milliseconds shop 1500", "sentinel failover-timeout shop 5000")
	address := throughSentinel(sentinel.Addr, "shop", "&"+p.showing())
	open := func(more string) *connected {
		b := must[*connected](t)(connectBroker(t.Context(), address+more, brokerOptions{log: discarded()}))
		t.Cleanup(func() { _ = b.close() })
		return b
	}
	b, careful := open(""), open("&replicas=1")
	source := must[inbox.Source](t)(b.Subscribe(t.Context(), "payment", []convergo.Subject{{Topic: "order", Type: "OrderPaid"}}))
	eventually(t, time.Minute, "the replica has what the primary has", func() bool {
		return careful.Publish(t.Context(), []convergo.Event{eventOf("O-1")})[0] == nil
	})
	testserver.Must(t, primary.Kill())
	eventually(t, time.Minute, "the replica is the primary", func() bool {
		return b.Publish(t.Context(), []convergo.Event{eventOf("O-2")})[0] == nil
	})
	missing := map[string]bool{"O-1": true, "O-2": true}
	eventually(t, time.Minute, "both events come from "+second, func() bool {
		got, err := source.Fetch(t.Context(), 10)
		for _, d := range got {
			if err := d.Ack(t.Context()); err != nil && convergo.VerdictOf(err) != convergo.Outage {
				t.Error(err)
			}
			delete(missing, d.Event.Aggregate.ID)
		}
		return err == nil && len(missing) == 0
	})
}
