package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/testserver"
)

// shares is a platform of a few services on a broker that it shares; its databases are files of its own folder.
func shares(t *testing.T, dir, broker string, args ...string) *running {
	t.Helper()
	return startPlatform(t, dir, append(append(quickly(), "--broker", broker, "--services", "order,inventory,risk"), args...)...)
}

// shopper places orders at one platform.
type shopper struct {
	*running
	bearer string
	orders []string
}

func shopAt(p *running) *shopper {
	p.stock("71053", 500, 1000)
	return &shopper{running: p, bearer: p.session("u-1")}
}

func (s *shopper) order() {
	s.t.Helper()
	s.orders = append(s.orders, s.place(s.bearer, fmt.Sprintf("%s-%d", filepath.Base(s.dir), len(s.orders)), "71053", 1).OrderNo)
}

// unready is what the probe says, or "".
func (p *running) unready(path string) string {
	p.t.Helper()
	if a := p.send(http.MethodGet, path, nil); a.status != http.StatusOK {
		return a.problem(p.t, http.StatusServiceUnavailable).Detail
	}
	return ""
}

// Two platforms that were given one prefix by mistake stop. None of their events is consumed by the other: once the second one has a
// prefix of its own, and its events are replayed there, every order of both goes on.
func TestTwoPlatformsUnderOnePrefixStopAndLoseNothing(t *testing.T) {
	for name, addresses := range map[string]func(t *testing.T) (shared, other string){
		"nats": func(t *testing.T) (string, string) {
			server := testserver.Shared(t, &servers, "nats", testserver.OpenNATS)
			return server.URL + "/?stream=MIXED&prefix=mixed&lease=2s", server.URL + "/?stream=APART&prefix=apart"
		},
		"kafka": func(t *testing.T) (string, string) {
			server := testserver.Own(t, testserver.OpenKafka)
			at := "kafka://" + server.Addr + "?replicas=1&partitions=4&prefix="
			return at + "mixed.", at + "apart."
		},
	} {
		t.Run(name, func(t *testing.T) {
			shared, other := addresses(t)
			dir := t.TempDir()
			north := shopAt(shares(t, filepath.Join(dir, "north"), shared))
			north.order()
			south := shopAt(shares(t, filepath.Join(dir, "south"), shared))
			stopped := north
			eventually(t, time.Minute, "one of the platforms notices", func() bool {
				north.order()
				south.order()
				for _, p := range []*shopper{north, south} {
					if p.unready("/readyz") != "" {
						stopped = p
						return true
					}
				}
				return false
			})
			for _, path := range []string{"/readyz", "/flowz"} {
				why := stopped.unready(path)
				for _, words := range []string{north.secrets.PlatformID, south.secrets.PlatformID, "prefix", "mixed"} {
					if !strings.Contains(why, words) {
						t.Errorf("%s says %q, not %q", path, why, words)
					}
				}
				if strings.Contains(why, "127.0.0.1") || strings.Contains(why, "://") {
					t.Errorf("%s tells everybody where the broker is: %s", path, why)
				}
				if a := stopped.send(http.MethodGet, path, nil); !strings.Contains(string(a.body), "--pass-over") {
					t.Errorf("%s names no remedy for what the other one has left: %s", path, a.body)
				}
				if a := stopped.send(http.MethodHead, path, nil); a.status != http.StatusServiceUnavailable {
					t.Errorf("HEAD %s: %d", path, a.status)
				}
			}
			if north.secrets.PlatformID == south.secrets.PlatformID || north.secrets.PlatformID == "" {
				t.Fatalf("two platforms are called %q", north.secrets.PlatformID)
			}
			if n := strings.Count(stopped.err.String(), "stands still"); n < 1 || n > 3 {
				t.Errorf("the log of the three consumers says it %d times:\n%s", n, stopped.err.String())
			}
			north.end(0)
			south.end(0)
			north.running = shares(t, north.dir, shared, "--pass-over", south.secrets.PlatformID)
			south.running = shares(t, south.dir, other)
			south.operator(http.MethodPost, "/ops/order/replay", "again", map[string]any{"since": "2026-01-01T00:00:00Z"}, nil)
			south.operator(http.MethodPost, "/ops/inventory/replay", "again", map[string]any{"since": "2026-01-01T00:00:00Z"}, nil)
			south.operator(http.MethodPost, "/ops/risk/replay", "again", map[string]any{"since": "2026-01-01T00:00:00Z"}, nil)
			for _, p := range []*shopper{north, south} {
				for _, no := range p.orders {
					if o := p.wait(p.bearer, no, "payable"); !o.IsPayable {
						t.Errorf("order %s of %s: %s %s", no, p.dir, o.Status, o.Reason)
					}
				}
				if why := p.unready("/readyz"); why != "" {
					t.Errorf("%s: %s", p.dir, why)
				}
			}
		})
	}
}

func TestThePlatformsIDIsThatOfTheSecretsAndOutlivesThem(t *testing.T) {
	dir := t.TempDir()
	made, err := loadSecrets(dir)
	if err != nil || made.PlatformID == "" || convergo.ValidateOrigin(made.PlatformID) != nil {
		t.Fatalf("new secrets have the id %q, %v", made.PlatformID, err)
	}
	again, err := loadSecrets(dir)
	if err != nil || again != made {
		t.Errorf("read again they are others: %v", err)
	}
	rotated := made
	rotated.OperatorKey, rotated.SessionSecret, rotated.ChannelSecret = "op_new", "new", "whsec_bmV3"
	if rotated.platform() != made.platform() {
		t.Error("the id changed with the secrets")
	}
}

func TestProcessesThatMakeTheSecretsAtOnceHaveTheSameOnes(t *testing.T) {
	for range 20 {
		dir := t.TempDir()
		made := make([]secrets, 8)
		var all sync.WaitGroup
		for i := range made {
			all.Go(func() {
				var err error
				if made[i], err = loadSecrets(dir); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for _, s := range made {
			if s != made[0] || s.PlatformID == "" {
				t.Fatalf("one has the platform %q, another one %q", s.PlatformID, made[0].PlatformID)
			}
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
			t.Fatalf("left behind are %v, %v", files, err)
		}
	}
}

// A start that ends before it has looked at the databases must not leave secrets by which the next one would pass for the platform that
// is there, and one that is refused for one database must not take another that was nobody's.
func TestAStartThatFailsLeavesNothingByWhichTheNextOneTakesAPlatformsDatabase(t *testing.T) {
	t.Parallel()
	at, first, dir := t.TempDir(), t.TempDir(), t.TempDir()
	args := []string{"serve", "--addr", "127.0.0.1:0", "--data", dir, "--database", "sqlite:" + filepath.Join(at, "{service}.db"), "--services"}
	startPlatform(t, first, "--services", "points", "--database", "sqlite:"+filepath.Join(at, "{service}.db")).end(0)
	refused(t, 1, []string{"nats://127.0.0.1:1"}, append(args, "points", "--broker", "nats://127.0.0.1:1")...)
	taken := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	defer func() { _ = taken.Close() }()
	refused(t, 1, []string{"listen"}, append(args, "points", "--addr", taken.Addr().String())...)
	refused(t, 1, []string{"points.db has the tables of a platform"}, append(args, "points")...)
	refused(t, 1, []string{"points.db has the tables of a platform"}, append(args, "coupon,points")...)
	startPlatform(t, dir, "--services", "coupon", "--database", "sqlite:"+filepath.Join(at, "{service}.db")).end(0)
}

// Secrets of before there was an id: all who share the file find the same one, and the folder's own file keeps it.
func TestSecretsWithoutAPlatformIDDetermineOne(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, secretsFile)
	old := secrets{OperatorKey: "op_1234567890123456", SessionSecret: "b12345678901234567890", ChannelSecret: "whsec_" + strings.Repeat("QUFB", 11)}
	text, err := json.Marshal(map[string]string{
		"operator_key": old.OperatorKey, "session_secret": old.SessionSecret, "channel_secret": old.ChannelSecret, "of_a_later_version": "stays",
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, string(text))
	want := old.platform()
	if want == "" || strings.Contains(want, "QUFB") {
		t.Fatalf("the id is %q", want)
	}
	given, err := openFolder(filepath.Join(dir, "a"), path)
	if err != nil {
		t.Fatal(err)
	}
	if err := given.keepPlatformID(); err != nil || given.Secrets.platform() != want || textOf(t, path) != string(text) {
		t.Errorf("of --secrets: %v, id %s, want %s and the file unchanged: %s", err, given.Secrets.platform(), want, textOf(t, path))
	}
	if err := given.close(); err != nil {
		t.Error(err)
	}
	write(t, filepath.Join(dir, "DATABASES"), "")
	own, err := openFolder(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := own.keepPlatformID(); err != nil {
		t.Fatal(err)
	}
	if err := own.close(); err != nil {
		t.Error(err)
	}
	kept := textOf(t, path)
	if !strings.Contains(kept, `"platform_id": "`+want+`"`) || !strings.Contains(kept, `"of_a_later_version": "stays"`) {
		t.Errorf("the folder's file is %s", kept)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if now, err := loadSecrets(dir); err != nil || now.PlatformID != want || now.ChannelSecret != old.ChannelSecret {
		t.Errorf("read again: %+v, %v", now.PlatformID, err)
	}
}

func TestAPlatformsIDThatCannotTravelIsRefused(t *testing.T) {
	for _, flag := range []string{"--platform-id", "--take-from", "--pass-over"} {
		refused(t, 2, []string{flag, "two words"}, "serve", "--data", t.TempDir(), flag, "two words")
	}
	refused(t, 2, []string{"--platform-id", "two words"}, "relay", "--database", "sqlite:x.db", "--broker", "nats://127.0.0.1:1", "--platform-id", "two words")
}
