package webhook

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
)

// errNotPublic is wrapped when an endpoint's address is one that must not be called. It does not say which address it was: a
// subscriber who may read errors must not learn names of our network by it.
var errNotPublic = errors.New("the address is not a public one: name its network under allow (Config.Allow) if it may be called")

// denied are networks that the standard library's questions do not cover: shared and special ones, and those of IPv6
// that carry an IPv4 address inside, which could be any.
func denied() []netip.Prefix {
	var all []netip.Prefix
	for _, text := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
		"240.0.0.0/4", "168.63.129.16/32", // the last one is a cloud's metadata
		"::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fec0::/10",
	} {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// guard decides about addresses when they are dialed, after names are resolved: what is checked is what is called.
type guard struct{ allow, deny []netip.Prefix }

func newGuard(allow []netip.Prefix) guard { return guard{allow, denied()} }

// control is for net.Dialer.Control.
func (g guard) control(network, address string, _ syscall.RawConn) error {
	if network != "tcp4" && network != "tcp6" {
		return fmt.Errorf("network %s: %w", network, errNotPublic)
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return errNotPublic
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || !g.permits(ip) {
		return errNotPublic
	}
	return nil
}

func (g guard) permits(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	within := func(p netip.Prefix) bool { return p.Contains(ip) }
	if slices.ContainsFunc(g.allow, within) {
		return true
	}
	return ip.IsGlobalUnicast() && !ip.IsPrivate() && !slices.ContainsFunc(g.deny, within)
}
