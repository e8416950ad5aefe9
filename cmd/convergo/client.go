package main

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/convergo/convergo/trade"
)

// clients tells which address a request comes from. That is the address of the connection, unless somebody who may say so says
// otherwise: a proxy of --trusted-proxies, or a process of this platform that has passed the request on and signed for it.
type clients struct {
	trusted []netip.Prefix
	secret  []byte // of the platform: what peers sign with
	now     func() time.Time
}

// clients of this platform.
func (p *platform) clients() clients {
	c := clients{now: time.Now}
	c.trusted, _ = parseNetworks(p.cfg.TrustedProxies) // validate has refused what is no network
	if p.folder != nil {
		c.secret = []byte(p.folder.Secrets.SessionSecret)
	}
	return c
}

// parseNetworks reads networks such as 10.0.0.0/8, and single addresses.
func parseNetworks(texts []string) (networks []netip.Prefix, err error) {
	for _, text := range texts {
		network, err := netip.ParsePrefix(text)
		if addr, single := netip.ParseAddr(text); single == nil {
			addr = plain(addr)
			network, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("%q is neither a network such as 10.0.0.0/8 nor an address", text)
		}
		if network.Addr().Is4In6() { // would contain no address: they are compared as IPv4
			return nil, fmt.Errorf("%q is an IPv4 network in IPv6 notation; write it as IPv4", text)
		}
		networks = append(networks, network.Masked())
	}
	return networks, nil
}

// plain is an address in its one form: IPv4 in IPv6 is IPv4, and no interface is named.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

func (c clients) trusts(a netip.Addr) bool {
	for _, network := range c.trusted {
		if network.Contains(a) {
			return true
		}
	}
	return false
}

// of is the client's address; not valid when the connection has none.
//
// A header is read from the right, where the nearest proxy has written, and only as long as those who wrote are trusted: what stands
// further left may be the client's invention. What cannot be read ends it, at the last trusted address. A proxy fills one of the two
// headers and may let the other one through as the client sent it: where they differ, neither is believed.
func (c clients) of(r *http.Request) netip.Addr {
	hop := remote(r)
	if client, ok := c.vouched(r.Header.Values(passedOn)); ok {
		return client
	}
	if !hop.IsValid() || !c.trusts(hop) {
		return hop
	}
	list, standard := r.Header.Values("X-Forwarded-For"), r.Header.Values("Forwarded")
	switch {
	case len(standard) == 0:
		return c.walk(hop, strings.Split(strings.Join(list, ","), ","))
	case len(list) == 0:
		return c.walk(hop, forwardedFor(standard))
	}
	one, other := c.walk(hop, strings.Split(strings.Join(list, ","), ",")), c.walk(hop, forwardedFor(standard))
	if one != other {
		return hop
	}
	return one
}

// remote is the other end of the connection.
func remote(r *http.Request) netip.Addr {
	a, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return plain(a.Addr())
}

func (c clients) walk(hop netip.Addr, hops []string) netip.Addr {
	for i := len(hops) - 1; i >= 0; i-- {
		a, ok := hopAddress(hops[i])
		if !ok {
			return hop
		}
		if hop = a; !c.trusts(a) {
			return a
		}
	}
	return hop
}

// hopAddress reads 192.0.2.1, 192.0.2.1:80, 2001:db8::1, [2001:db8::1] and [2001:db8::1]:80.
func hopAddress(text string) (netip.Addr, bool) {
	text = strings.TrimSpace(text)
	if a, err := netip.ParseAddrPort(text); err == nil {
		return plain(a.Addr()), true
	}
	if inner, ok := strings.CutPrefix(text, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); !ok || !strings.Contains(inner, ":") {
			return netip.Addr{}, false
		}
		text = inner
	}
	a, err := netip.ParseAddr(text)
	return plain(a), err == nil
}

// forwardedFor are the for= of a Forwarded header (RFC 7239), "" where an element has none or hides it. One that is not written by the
// rules is "" alone: with a quotation mark left open nobody knows who wrote what.
func forwardedFor(values []string) (hops []string) {
	elements, ok := splitUnquoted(strings.Join(values, ","), ',')
	for _, element := range elements {
		pairs, _ := splitUnquoted(element, ';')
		hop, seen := "", false
		for _, pair := range pairs {
			name, value, found := strings.Cut(strings.TrimSpace(pair), "=")
			if !strings.EqualFold(name, "for") {
				continue
			}
			value, fits := unquoted(value)
			ok = ok && found && fits && !seen
			hop, seen = value, true
		}
		hops = append(hops, hop)
	}
	if !ok {
		return []string{""}
	}
	return hops
}

// splitUnquoted splits at separators outside quotation marks; ok is false when one is left open.
func splitUnquoted(text string, separator byte) (parts []string, ok bool) {
	begin, inside := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inside && c == '\\':
			i++
		case c == '"':
			inside = !inside
		case c == separator && !inside:
			parts, begin = append(parts, text[begin:i]), i+1
		}
	}
	return append(parts, text[begin:]), !inside
}

// unquoted is a token, or what stands between quotation marks. An address needs no backslash.
func unquoted(value string) (string, bool) {
	if inner, ok := strings.CutPrefix(value, `"`); ok {
		inner, ok = strings.CutSuffix(inner, `"`)
		return inner, ok && !strings.ContainsAny(inner, `"\`)
	}
	return value, !strings.ContainsAny(value, "\"\\ \t")
}

// passedOn marks a request that a peer has passed on: it is not passed on again. Its value is signed with the platform's secret and
// tells the client's address; a process with other secrets, or an older one, is believed that it passed the request on and no more.
const passedOn = "Convergo-Passed-On"

const (
	vouchPrefix = "cp1"
	// vouchFor is how far apart the clocks of two processes may be. There is nothing to be won with an old one: it counts for the address
	// that it names.
	vouchFor = 5 * time.Minute
)

// vouch is what a process says of a request that it passes on.
type vouch struct {
	Client string `json:"c"` // address
	At     int64  `json:"t"` // microseconds
}

// vouchOf is the value of passedOn for a client.
func (c clients) vouchOf(client netip.Addr) string {
	value, err := trade.SignToken(c.secret, vouchPrefix, vouch{Client: client.String(), At: c.now().UnixMicro()})
	if err != nil || !client.IsValid() {
		return "1"
	}
	return value
}

// vouched is the client of a request that a process of this platform has passed on.
func (c clients) vouched(values []string) (netip.Addr, bool) {
	if len(values) != 1 {
		return netip.Addr{}, false
	}
	var v vouch
	if err := trade.OpenToken(c.secret, vouchPrefix, values[0], &v); err != nil {
		return netip.Addr{}, false
	}
	client, err := netip.ParseAddr(v.Client)
	return plain(client), err == nil && c.now().Sub(time.UnixMicro(v.At)).Abs() <= vouchFor
}

// account is whose allowance a request uses up. Who has an IPv6 address has all of its network, 2^64 of them, so they share one.
func (c clients) account(r *http.Request) string {
	a := c.of(r)
	switch {
	case !a.IsValid():
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			return r.RemoteAddr
		}
		return host
	case a.Is6():
		network, _ := a.Prefix(64) // 64 is a length that every IPv6 address has
		return network.String()
	}
	return a.String()
}
