package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/convergo/convergo/drill"
)

func TestTheDemoPassesNoSettingOfItsSurroundingsOn(t *testing.T) {
	dir := t.TempDir()
	must[secrets](t)(loadSecrets(dir))
	for _, c := range []demoCommand{{}, {Instances: 2, Relays: 3, backends: backends{Broker: "nats://localhost"}}} {
		d := &theDrill{demoCommand: c, dir: dir}
		if err := d.layOut(t.Context(), "convergo", "127.0.0.1:1", "http://127.0.0.1:2"); err != nil {
			t.Fatal(err)
		}
		var members []*member
		switch p := d.platform.(type) {
		case alone:
			members = []*member{{Child: p.Child}}
		case *fleet:
			members = p.members()
		}
		if want := max(1, c.Instances*len(serviceNames())+c.Relays); len(members) != want {
			t.Errorf("%d processes, want %d", len(members), want)
		}
		for _, m := range members {
			if m.Without != envPrefix {
				t.Errorf("%s gets what begins with %q and is around the demo", m.name, envPrefix)
			}
		}
	}
}

func TestADemoConvergesWithSettingsOfAnotherPlatformAroundIt(t *testing.T) {
	t.Setenv("CONVERGO_SERVICES", "order") // the children would have no payment
	t.Setenv("CONVERGO_TRUSTED_PROXIES", "nonsense")
	ran := runChild(t.Context(), t, "demo", "--count", "5", "--buyers", "2", "--kills", "0", "--keep", filepath.Join(t.TempDir(), "data"), "--timeout", (2 * time.Minute).String())
	if ran.code != 0 || !strings.Contains(ran.out, drill.Converged) {
		t.Errorf("exit code %d: %s%s", ran.code, ran.out, ran.err)
	}
}
