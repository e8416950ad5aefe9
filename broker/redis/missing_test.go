package redis

import (
	"strings"
	"testing"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/testserver"
)

func TestALookMakesNothingAndTellsWhatTheAccountMayNot(t *testing.T) {
	server := testserver.Own(t, testserver.OpenRedis)
	admin := connect(Config{Addr: server.Addr}.withDefaults(), 0)
	defer func() { _ = admin.Close() }()
	err := admin.Do(t.Context(), "ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+info", "+@connection", "+acl|whoami", "+acl|dryrun").Err()
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(t.Context(), Config{Addr: server.Addr, User: "reader", Password: "secret", LookOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	missing, err := b.Missing(t.Context(), []string{"order"}, nil)
	if len(missing) != 1 || missing[0] != "streams convergo:order:0 to 7" {
		t.Errorf("missing: %v", missing)
	}
	for _, words := range []string{"reader", "xadd", "hsetnx", "eval"} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v does not say %q", err, words)
		}
	}
	if errs := b.Publish(t.Context(), []convergo.Event{{}, {}}); len(errs) != 2 || errs[0] == nil || errs[1] == nil {
		t.Errorf("published: %v", errs)
	}
	if _, err := b.Subscribe(t.Context(), "points", []convergo.Subject{{Topic: "order"}}); err == nil {
		t.Error("subscribed")
	}
	if n := admin.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were made", n)
	}
	full, err := Open(t.Context(), Config{Addr: server.Addr, LookOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = full.Close() }()
	if _, err := full.Missing(t.Context(), []string{"order"}, nil); err != nil {
		t.Errorf("an account that may do everything: %v", err)
	}
}
