package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/convergo/convergo/relay"
)

// Check looks at the server's settings and returns those under which something confirmed can be lost. It needs the
// permission for INFO; what only CONFIG GET tells is a warning of its own when that is not allowed.
func (b *Broker) Check(ctx context.Context) ([]relay.Warning, error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	defer cancel()
	info, err := b.info(ctx, "all")
	if err != nil {
		return nil, fmt.Errorf("check redis at %s: %w", b.where(), verdict(err))
	}
	var found []relay.Warning
	warn := func(setting, value, want, loses string) {
		found = append(found, relay.Warning{Setting: setting, Value: value, Want: want, Loses: loses})
	}
	if info["aof_enabled"] != "1" {
		warn("appendonly", "no", "yes", "A server that stops or is killed loses every event since its last snapshot.")
	} else if fsync := b.setting(ctx, "appendfsync"); fsync != "always" {
		warn("appendfsync", fsync, "always", "A power cut or a crash of the machine loses the events of about the last second (everysec) or more (no).")
	}
	if status := info["aof_last_write_status"]; status != "" && status != "ok" {
		warn("aof_last_write_status", status, "ok", "The append-only file cannot be written: what is confirmed now is not on disk.")
	}
	if policy := info["maxmemory_policy"]; policy != "noeviction" {
		warn("maxmemory-policy", policy, "noeviction", "When memory is full the server deletes keys: streams with all their events, or the leases that keep order.")
	}
	b.checkReplicas(ctx, info, warn)
	if info["role"] != "master" && info["role"] != "" {
		warn("role", info["role"], "master", "A replica takes no events.")
	}
	return found, nil
}

func (b *Broker) checkReplicas(ctx context.Context, info map[string]string, warn func(setting, value, want, loses string)) {
	replicas, _ := strconv.Atoi(info["connected_slaves"]) // absent is 0
	if replicas == 0 {
		warn("connected_slaves", "0", "1 or more", "The loss of this machine's disk loses all events that it holds.")
	}
	if b.cfg.Replicas < 1 {
		warn("replicas (Config.Replicas)", "0", "1 or more", "An event is confirmed before a replica has it: a failover can lose the newest events.")
	} else if replicas < b.cfg.Replicas {
		warn("connected_slaves", strconv.Itoa(replicas), fmt.Sprint(b.cfg.Replicas), "Nothing is confirmed with fewer connected than replicas (Config.Replicas).")
	}
	if replicas > 0 {
		if n := b.setting(ctx, "min-replicas-to-write"); n == "0" {
			warn("min-replicas-to-write", n, "1 or more", "A primary that was cut off goes on taking events, which are lost when it returns as a replica.")
		}
	}
}

// setting is a value of the server's configuration, or what is known about why it cannot be seen.
func (b *Broker) setting(ctx context.Context, name string) string {
	values, err := b.client.ConfigGet(ctx, name).Result()
	if err != nil {
		return "unknown (CONFIG GET is not allowed)"
	}
	return values[name]
}

// info is a section of INFO by field.
func (b *Broker) info(ctx context.Context, section string) (map[string]string, error) {
	text, err := b.client.Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}

func atLeast(version string, major int) bool {
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(first)
	return err == nil && n >= major
}
