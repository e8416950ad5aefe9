package main

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	goredis "github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/convergo/convergo/internal/freeport"
	"github.com/convergo/convergo/testserver"
)

func portOf(t *testing.T, hostPort string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// natsAt starts a server of NATS inside the test, with these lines in its configuration, and returns host:port of it and of its monitor.
func natsAt(t *testing.T, config string, change func(*server.Options)) (at, monitor string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	write(t, file, config)
	options := must[*server.Options](t)(server.ProcessConfigFile(file))
	options.Host, options.Port, options.HTTPHost, options.HTTPPort = "127.0.0.1", server.RANDOM_PORT, "127.0.0.1", server.RANDOM_PORT
	options.JetStream, options.StoreDir, options.NoSigs, options.NoLog = true, t.TempDir(), true, true
	change(options)
	s := must[*server.Server](t)(server.NewServer(options))
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	return s.Addr().String(), s.MonitorAddr().String()
}

func unchangedOptions(*server.Options) {}

// issuer makes the accounts of a server that knows its users by what an operator signed, and files of two of them: one of an account that
// the server knows, and one of another.
func issuer(t *testing.T) (change func(*server.Options), known, unknown string) {
	t.Helper()
	public := func(k nkeys.KeyPair) string { return must[string](t)(k.PublicKey()) }
	operator, system := must[nkeys.KeyPair](t)(nkeys.CreateOperator()), must[nkeys.KeyPair](t)(nkeys.CreateAccount())
	resolver := &server.MemAccResolver{}
	credentials := func(name string, stored bool) string {
		account, user := must[nkeys.KeyPair](t)(nkeys.CreateAccount()), must[nkeys.KeyPair](t)(nkeys.CreateUser())
		claims := jwt.NewAccountClaims(public(account))
		claims.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: -1, MemoryStorage: -1, Streams: -1, Consumer: -1}
		if stored {
			testserver.Must(t, resolver.Store(claims.Subject, must[string](t)(claims.Encode(operator))))
		}
		token := must[string](t)(jwt.NewUserClaims(public(user)).Encode(account))
		file := filepath.Join(t.TempDir(), name)
		write(t, file, string(must[[]byte](t)(jwt.FormatUserConfig(token, must[[]byte](t)(user.Seed())))))
		return file
	}
	known, unknown = credentials("known.creds", true), credentials("unknown.creds", false)
	testserver.Must(t, resolver.Store(public(system), must[string](t)(jwt.NewAccountClaims(public(system)).Encode(operator))))
	return func(o *server.Options) {
		o.TrustedOperators, o.AccountResolver, o.SystemAccount = []*jwt.OperatorClaims{jwt.NewOperatorClaims(public(operator))}, resolver, public(system)
	}, known, unknown
}

func nkeyFile(t *testing.T) (public, file string) {
	t.Helper()
	user := must[nkeys.KeyPair](t)(nkeys.CreateUser())
	file = filepath.Join(t.TempDir(), "seed")
	write(t, file, string(must[[]byte](t)(user.Seed())))
	return must[string](t)(user.PublicKey()), file
}

func TestEachAddressOfNATSOpensOrSaysWhatToDo(t *testing.T) {
	t.Parallel()
	p := papersFor(t)
	public, seed := nkeyFile(t)
	_, strangeSeed := nkeyFile(t)
	signed, known, unknown := issuer(t)
	secure, _ := natsAt(t, fmt.Sprintf("authorization { user: app, password: %s }\ntls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }",
		password, p.cert, p.key, p.ca), unchangedOptions)
	plain, monitor := natsAt(t, "authorization { user: app, password: "+password+" }", unchangedOptions)
	token, _ := natsAt(t, "authorization { token: "+password+" }", unchangedOptions)
	nkey, _ := natsAt(t, "authorization { users: [ { nkey: "+public+" } ] }", unchangedOptions)
	operated, _ := natsAt(t, "", signed)
	account := "nats://app:" + password + "@"
	for _, shown := range p.unfit(t) {
		t.Run("shows "+shown.name, func(t *testing.T) {
			at, _ := natsAt(t, fmt.Sprintf("tls { cert_file: %q, key_file: %q }", shown.cert, shown.key), unchangedOptions)
			toldOfBroker(t, account+at+"/?"+p.trusting(), shown.told(serverCertificate, "?ca"))
		})
	}
	door{
		opens: []string{
			account + secure + "/?tls=true&" + p.showing(), account + "localhost:" + portOf(t, secure) + "/?server_name=" + serverName + "&" + p.showing(),
			account + plain + "/?stream=SECOND&prefix=second&partitions=2&replicas=1&lease=2s&monitor=http://" + monitor,
			"nats://" + password + "@" + token + "?", "nats://" + token + "/?token=" + password,
			"nats://" + nkey + "/?nkey=" + seed, "nats://" + operated + "/?credentials=" + known,
		},
		closed: map[string]string{
			"nats://app:" + wrongPassword + "@" + plain: "refuses USER:PASSWORD of the address: correct them",
			"nats://" + plain:                                               "asks for a log-in: write nats://USER:PASSWORD@HOST",
			"nats://" + wrongPassword + "@" + token:                         "refuses the token of the address: correct it",
			"nats://" + token + "/?token=" + wrongPassword:                  "refuses the token of the address: correct it",
			"nats://" + nkey + "/?nkey=" + strangeSeed:                      "file of ?nkey names",
			"nats://" + nkey + "/?nkey=/nowhere":                            "?nkey: open /nowhere",
			"nats://" + operated + "/?credentials=" + unknown:               "file of ?credentials names",
			"nats://" + operated + "/?credentials=/nowhere":                 "?credentials: open /nowhere",
			account + secure:                                                "name the file of its authority with ?ca=FILE",
			account + secure + "/?ca=" + p.strange:                          "not signed by the authority of ?ca: name the file",
			account + secure + "/?" + p.trusting():                          "name one with ?cert=FILE&key=FILE",
			account + secure + "/?" + p.lying():                             "accept the client certificate of ?cert",
			account + secure + "/?" + p.stale(t):                            "the client certificate of ?cert expired on " + expired(),
			account + secure + "/?ca=" + p.formerly(t):                      "whose own expired on " + expired() + ", and TLS (?ca) takes none such: name the file of its new one with ?ca=FILE",
			account + plain + "/?" + p.showing():                            "speaks no TLS: name the port that does, or leave out ?tls",
			account + "localhost:" + portOf(t, secure) + "/?" + p.showing(): "or as ?server_name=NAME",
		},
	}.ofBroker(t)
}

// redisAt runs commands on a server as who may do everything there.
func redisAt(t *testing.T, addr, password string) (do func(command ...any)) {
	t.Helper()
	admin := goredis.NewClient(&goredis.Options{Addr: addr, Password: password})
	t.Cleanup(func() { _ = admin.Close() })
	return func(command ...any) {
		t.Helper()
		testserver.Must(t, admin.Do(t.Context(), command...).Err())
	}
}

func TestEachAddressOfRedisOpensOrSaysWhatToDo(t *testing.T) {
	t.Parallel()
	p := papersFor(t)
	port := must[int](t)(freeport.Next())
	secure, socket := fmt.Sprint("127.0.0.1:", port), filepath.Join(p.dir, "redis.sock")
	s := testserver.Own(t, testserver.OpenRedisWith("--tls-port", fmt.Sprint(port), "--tls-cert-file", p.cert, "--tls-key-file", p.key,
		"--tls-ca-cert-file", p.ca, "--tls-auth-clients", "yes", "--unixsocket", socket))
	admin := redisAt(t, s.Addr, "")
	admin("ACL", "SETUSER", "app", "on", ">"+password, "~*", "+@all")
	admin("ACL", "SETUSER", "small", "on", ">"+password, "~*", "+ping")
	admin("CONFIG", "SET", "requirepass", password)
	sentinel := testserver.Own(t, func() (*testserver.Sentinel, error) {
		return testserver.OpenSentinel(testserver.SentinelOptions{
			Watch: map[string]string{"shop": s.Addr}, Password: sentinelPassword, ServerPassword: password,
		})
	})
	account := "redis://app:" + password + "@"
	watched := account + sentinel.Addr + "/?primary=shop&sentinel_user=default"
	door{
		opens: []string{
			account + secure + "/?tls=true&" + p.showing(), account + "localhost:" + fmt.Sprint(port) + "/?server_name=" + serverName + "&" + p.showing(),
			"redis://:" + password + "@" + s.Addr + "?", account + s.Addr + "/?db=3&prefix=second&partitions=2&replicas=0&lease=2s",
			account + "/?socket=" + socket, watched + "&sentinel_password=" + sentinelPassword,
		},
		closed: map[string]string{
			"redis://app:" + wrongPassword + "@" + s.Addr:   "refuses USER:PASSWORD of the address: correct them",
			"redis://:" + wrongPassword + "@" + s.Addr:      "refuses USER:PASSWORD of the address: correct them",
			"redis://" + s.Addr:                             "asks for a password: write redis://:PASSWORD@HOST",
			"redis://" + password + "@" + s.Addr:            "a user without a password: write redis://:PASSWORD@HOST",
			"redis://small:" + password + "@" + s.Addr:      "may not do this: on the server, ACL SETUSER",
			account + s.Addr + "," + s.Addr:                 "name the primary that they watch with ?primary=NAME",
			watched + "&sentinel_password=" + wrongPassword: "Sentinels",
			watched: "Sentinels",
			account + s.Addr + "/?primary=shop&sentinel_password=" + password: "what answers there is no Sentinel: name the Sentinels",
			account + secure:                                               "if it speaks TLS at this port, write ?tls=true",
			account + secure + "/?tls=true":                                "name the file of its authority with ?ca=FILE",
			account + secure + "/?ca=" + p.strange:                         "not signed by the authority of ?ca: name the file",
			account + secure + "/?" + p.trusting():                         "name one with ?cert=FILE&key=FILE",
			account + secure + "/?" + p.lying():                            "accept the client certificate of ?cert",
			account + secure + "/?" + p.stale(t):                           "the client certificate of ?cert expired on " + expired(),
			account + s.Addr + "/?" + p.showing():                          "if no TLS is spoken at this port",
			account + "localhost:" + fmt.Sprint(port) + "/?" + p.showing(): "or as ?server_name=NAME",
		},
	}.ofBroker(t)
	saysAlone(t, "relay", "--database", "sqlite:"+filepath.Join(t.TempDir(), "shop.db"), "--broker", account+secure+"/?tls=true")
	for _, shown := range p.unfit(t) {
		t.Run("shows "+shown.name, func(t *testing.T) {
			redisAt(t, s.Addr, password)("CONFIG", "SET", "tls-cert-file", shown.cert, "tls-key-file", shown.key)
			toldOfBroker(t, account+secure+"/?"+p.showing(), shown.told(serverCertificate, "?ca, ?cert"))
		})
	}
	third := goredis.NewClient(&goredis.Options{Addr: s.Addr, Password: password, DB: 3})
	defer func() { _ = third.Close() }()
	if keys := must[[]string](t)(third.Keys(t.Context(), "second:order:*").Result()); len(keys) == 0 {
		t.Error("nothing is in database 3")
	}
}

func TestEachAddressOfRabbitMQOpensOrSaysWhatToDo(t *testing.T) {
	t.Parallel()
	p := papersFor(t)
	s := testserver.Own(t, func() (*testserver.RabbitMQ, error) {
		return testserver.OpenRabbitMQ("ssl_options.certfile = "+p.cert, "ssl_options.keyfile = "+p.key, "ssl_options.cacertfile = "+p.ca,
			"ssl_options.verify = verify_peer", "ssl_options.fail_if_no_peer_cert = true", "ssl_cert_login_from = common_name",
			"auth_mechanisms.1 = PLAIN", "auth_mechanisms.2 = EXTERNAL")
	})
	for _, args := range [][]string{
		{"add_user", clientName, wrongPassword}, {"set_permissions", clientName, ".*", ".*", ".*"},
		{"add_vhost", "shop"}, {"set_permissions", "-p", "shop", s.User, ".*", ".*", ".*"},
	} {
		must[string](t)(s.Control(args...))
	}
	account := "amqp://" + s.User + ":" + s.Password + "@"
	door{
		opens: []string{
			account + s.TLSAddr + "/?tls=true&" + p.showing(), "amqp://" + s.TLSAddr + "/?" + p.showing() + "&prefix=certified.",
			account + "localhost:" + portOf(t, s.TLSAddr) + "/?server_name=" + serverName + "&" + p.showing(),
			account + s.Addr + "/shop?classic=true", account + s.Addr + "/%2F?prefix=second.&partitions=2&replicas=1",
		},
		closed: map[string]string{
			"amqp://app:" + wrongPassword + "@" + s.Addr:                       "refuses USER:PASSWORD of the address: correct them",
			"amqp://" + s.Addr:                                                 "refuses guest with the password guest: write amqp://USER:PASSWORD@HOST",
			account + s.Addr + "/nowhere":                                      "correct /VHOST of the address",
			"amqp://" + s.TLSAddr + "/?" + shows(p.ca, p.cert, p.key):          "no user of the name in the certificate of ?cert",
			account + s.TLSAddr:                                                "if it speaks TLS at this port, write ?tls=true",
			account + s.TLSAddr + "/?tls=true":                                 "name the file of its authority with ?ca=FILE",
			account + s.TLSAddr + "/?ca=" + p.strange:                          "not signed by the authority of ?ca: name the file",
			account + s.TLSAddr + "/?" + p.trusting():                          "name one with ?cert=FILE&key=FILE",
			account + s.TLSAddr + "/?" + p.lying():                             "accept the client certificate of ?cert",
			account + s.TLSAddr + "/?" + p.stale(t):                            "the client certificate of ?cert expired on " + expired(),
			account + s.Addr + "/?" + p.showing():                              "speaks no TLS: name the port that does, or leave out ?tls",
			account + "localhost:" + portOf(t, s.TLSAddr) + "/?" + p.showing(): "or as ?server_name=NAME",
		},
	}.ofBroker(t)
	for _, shown := range p.unfit(t) {
		t.Run("shows "+shown.name, func(t *testing.T) {
			p.replace(t, shown)
			must[string](t)(s.Control("eval", "ssl:clear_pem_cache()."))
			awaitShown(t, s.TLSAddr, p.cert, nil)
			toldOfBroker(t, account+s.TLSAddr+"/?"+p.showing(), shown.told(serverCertificate, "?ca, ?cert"))
		})
	}
}

// secureKafka starts a node with a listener for passwords under TLS and one for client certificates.
func secureKafka(t *testing.T, p papers) *testserver.Kafka {
	t.Helper()
	identity := filepath.Join(p.dir, "identity.pem")
	write(t, identity, textOf(t, p.key)+textOf(t, p.cert))
	lines := []string{
		"listener.name.mutual.ssl.client.auth=required", "listener.name.open.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
		"listener.name.open.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_app=\"" + password + "\";",
	}
	for _, mechanism := range []string{"scram-sha-256", "scram-sha-512"} {
		lines = append(lines, "listener.name.open."+mechanism+".sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;")
	}
	listeners, identities := map[string]string{"OPEN": "SASL_SSL", "MUTUAL": "SSL"}, map[string]string{"open": identity, "mutual": identity}
	for _, shown := range p.unfit(t) {
		listeners[strings.ToUpper(shown.name)], identities[shown.name] = "SSL", filepath.Join(p.dir, shown.name+".pem")
		write(t, identities[shown.name], textOf(t, shown.key)+textOf(t, shown.cert))
	}
	for name, file := range identities {
		ssl := "listener.name." + name + ".ssl."
		lines = append(lines, ssl+"keystore.type=PEM", ssl+"keystore.location="+file, ssl+"truststore.type=PEM", ssl+"truststore.location="+p.ca)
	}
	s := testserver.Own(t, testserver.OpenKafkaListening(listeners, lines...))
	client := must[*kgo.Client](t)(kgo.NewClient(kgo.SeedBrokers(s.Addr)))
	defer client.Close()
	for _, mechanism := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} {
		user := []kadm.UpsertSCRAM{{User: "app", Mechanism: mechanism, Iterations: 4096, Password: password}}
		answers := must[kadm.AlteredUserSCRAMs](t)(kadm.NewClient(client).AlterUserSCRAMs(t.Context(), nil, user))
		testserver.Must(t, answers.Error())
	}
	return s
}

func TestEachAddressOfKafkaOpensOrSaysWhatToDo(t *testing.T) {
	t.Parallel()
	p := papersFor(t)
	s := secureKafka(t, p)
	open, mutual := s.Listeners["OPEN"], s.Listeners["MUTUAL"]
	account, local := "kafka://app:"+password+"@"+open, "kafka://localhost:"+portOf(t, mutual)
	door{
		opens: []string{
			account + "/?replicas=1&sasl=plain&" + p.trusting(), account + "/?replicas=1&sasl=scram-sha-256&" + p.trusting(),
			account + "/?replicas=1&sasl=scram-sha-512&" + p.trusting(), "kafka://" + mutual + "/?replicas=1&tls=true&" + p.showing(),
			"kafka://localhost:" + portOf(t, mutual) + "/?replicas=1&server_name=" + serverName + "&" + p.showing(),
			"kafka://" + s.Addr + "/?replicas=1&prefix=second.&partitions=2&lease=2s&max_message=20000",
		},
		closed: map[string]string{
			"kafka://app:" + wrongPassword + "@" + open + "/?sasl=plain&" + p.trusting():         "refuses USER:PASSWORD of the address under ?sasl=plain: correct them",
			"kafka://app:" + wrongPassword + "@" + open + "/?sasl=scram-sha-512&" + p.trusting(): "refuses USER:PASSWORD of the address under ?sasl=scram-sha-512",
			account + "/?" + p.trusting():                             "USER:PASSWORD and ?sasl go together",
			"kafka://" + open + "/?sasl=plain&" + p.trusting():        "USER:PASSWORD and ?sasl go together",
			"kafka://" + open + "/?" + p.trusting():                   "if it asks for a log-in there, write kafka://USER:PASSWORD@HOST/?sasl=plain",
			"kafka://app:" + password + "@" + s.Addr + "/?sasl=plain": "does not take ?sasl=plain at this port",
			account + "/?sasl=plain":                                  "if it speaks TLS at this port, write ?tls=true",
			account + "/?sasl=plain&tls=true":                         "name the file of its authority with ?ca=FILE",
			"kafka://" + mutual:                                       "if it asks for TLS there, write ?tls=true",
			"kafka://" + mutual + "/?ca=" + p.strange:                 "not signed by the authority of ?ca: name the file",
			"kafka://" + mutual + "/?" + p.trusting():                 "name one with ?cert=FILE&key=FILE",
			"kafka://" + mutual + "/?" + p.lying():                    "accept the client certificate of ?cert",
			"kafka://" + mutual + "/?" + p.stale(t):                   "the client certificate of ?cert expired on " + expired(),
			"kafka://" + s.Addr + "/?" + p.showing():                  "speaks no TLS: name the port that does, or leave out ?tls",
			local + "/?" + p.showing():                                "or as ?server_name=NAME",
		},
	}.ofBroker(t)
	for _, shown := range p.unfit(t) {
		t.Run("shows "+shown.name, func(t *testing.T) {
			toldOfBroker(t, "kafka://"+s.Listeners[strings.ToUpper(shown.name)]+"/?"+p.trusting(), shown.told(serverCertificate, "?ca"))
		})
	}
	client := must[*kgo.Client](t)(kgo.NewClient(kgo.SeedBrokers(s.Addr)))
	defer client.Close()
	topic := must[kadm.TopicDetails](t)(kadm.NewClient(client).ListTopics(t.Context(), "second.order"))["second.order"]
	if len(topic.Partitions) != 2 {
		t.Errorf("topic second.order: %+v", topic)
	}
}

// secureRocketMQ starts servers that take TLS with a client certificate and signed requests only.
func secureRocketMQ(t *testing.T, p papers) *testserver.RocketMQ {
	t.Helper()
	const provider = "org.apache.rocketmq.auth.authentication.provider."
	return testserver.Own(t, func() (*testserver.RocketMQ, error) {
		return testserver.OpenRocketMQWith(testserver.RocketMQOptions{
			Closed: true,
			Java: []string{
				"-Dtls.test.mode.enable=false", "-Dtls.server.mode=enforcing", "-Dtls.server.certPath=" + p.cert, "-Dtls.server.keyPath=" + p.key,
				"-Dtls.server.need.client.auth=require", "-Dtls.server.authClient=true", "-Dtls.server.trustCertPath=" + p.ca,
				"-Dtls.enable=true", "-Dtls.client.authServer=true", "-Dtls.client.trustCertPath=" + p.ca,
				"-Dtls.client.certPath=" + p.clientCert, "-Dtls.client.keyPath=" + p.clientKey,
			},
			Settings: []string{
				"authenticationEnabled=true", "authenticationProvider=" + provider + "DefaultAuthenticationProvider",
				"authenticationMetadataProvider=" + provider + "LocalAuthenticationMetadataProvider",
				`initAuthenticationUser={"username":"app","password":"` + password + `"}`,
				`innerClientAuthenticationCredentials={"accessKey":"app","secretKey":"` + password + `"}`,
			},
		})
	})
}

func TestEachAddressOfRocketMQOpensOrSaysWhatToDo(t *testing.T) {
	t.Parallel()
	p := papersFor(t)
	s := secureRocketMQ(t, p)
	at, lease := s.NameServer+"/?", "&lease="+s.LockTerm.String()
	account, local := "rocketmq://app:"+password+"@"+at, "rocketmq://app:"+password+"@localhost:"+portOf(t, s.NameServer)+"/?"
	eventually(t, time.Minute, "the name server knows the broker", func() bool {
		b, err := connectBroker(t.Context(), account+p.showing(), brokerOptions{log: discarded()})
		return err == nil && b.close() == nil
	})
	door{
		opens: []string{
			account + "tls=true&" + p.showing() + lease,
			local + "server_name=" + serverName + "&prefix=second-&partitions=2&cluster=" + s.Cluster + "&" + p.showing() + lease,
		},
		closed: map[string]string{
			"rocketmq://app:" + wrongPassword + "@" + at + p.showing(): "refuse ACCESS:SECRET of the address",
			"rocketmq://nobody:" + password + "@" + at + p.showing():   "refuse ACCESS:SECRET of the address",
			"rocketmq://" + at + p.showing():                           "refuse ACCESS:SECRET of the address",
			account:                                                    "if it speaks TLS at this port, write ?tls=true",
			account + "tls=true":                                       "name the file of its authority with ?ca=FILE",
			account + "ca=" + p.strange:                                "not signed by the authority of ?ca: name the file",
			account + p.trusting():                                     "name one with ?cert=FILE&key=FILE",
			account + p.lying():                                        "accept the client certificate of ?cert",
			account + p.stale(t):                                       "the client certificate of ?cert expired on " + expired(),
			local + p.showing():                                        "or as ?server_name=NAME",
		},
	}.ofBroker(t)
	for _, shown := range p.unfit(t) {
		t.Run("shows "+shown.name, func(t *testing.T) {
			p.replace(t, shown)
			awaitShown(t, s.NameServer, p.cert, nil) // it looks at its files twice a second
			toldOfBroker(t, account+p.showing(), shown.told(serverCertificate, "?ca, ?cert"))
		})
	}
}
