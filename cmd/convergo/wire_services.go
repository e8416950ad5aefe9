package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/drill/check"
	"github.com/convergo/convergo/trade"
	"github.com/convergo/convergo/trade/channel"
	"github.com/convergo/convergo/trade/coupon"
	"github.com/convergo/convergo/trade/inventory"
	"github.com/convergo/convergo/trade/ledger"
	"github.com/convergo/convergo/trade/notification"
	"github.com/convergo/convergo/trade/order"
	"github.com/convergo/convergo/trade/payment"
	"github.com/convergo/convergo/trade/points"
	"github.com/convergo/convergo/trade/risk"
	"github.com/convergo/convergo/trade/shipping"
)

const (
	channelName = "standard" // the payment channel's name in paths and requests
	merchant    = "convergo-demo"
	worldFile   = "world.db"
	faultsFile  = "faults.jsonl"
)

// serviceNames are the services of the platform, in the order in which they are opened.
func serviceNames() []string {
	return []string{
		order.Name, payment.Name, inventory.Name, coupon.Name, points.Name, shipping.Name, ledger.Name, notification.Name, risk.Name,
	}
}

func channelSecret(s secrets) ([]channel.Secret, error) {
	secret, err := channel.ParseSecret(s.ChannelSecret)
	if err != nil {
		return nil, fmt.Errorf("secrets: channel_secret: %w", err)
	}
	return []channel.Secret{secret}, nil
}

// worldToken is what the simulated carrier and messenger know us by: as secret as the channel's secret that it is made of.
func worldToken(s secrets) string {
	sum := sha256.Sum256([]byte("carrier and messenger " + s.ChannelSecret))
	return hex.EncodeToString(sum[:])
}

// outsideClient keeps as many connections to one partner as a service makes calls at a time: the default keeps two, and under
// load nearly every call would open one of its own. A redirect is no answer.
func outsideClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 32, IdleConnTimeout: time.Minute,
			TLSHandshakeTimeout: 5 * time.Second,
		},
		Timeout:       5 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// newService makes the unit's service.
func (p *platform) newService(u *unit, name string, deps trade.Deps) (err error) {
	outside := outsideClient()
	world, cashier := p.cfg.World, p.cfg.World
	if world == "" {
		world, cashier = p.cfg.local(), p.cfg.url()
	}
	switch name {
	case order.Name:
		service, err := order.New(deps, order.Config{
			PaymentWindow: p.cfg.PaymentWindow, TokenSecret: []byte(p.folder.Secrets.SessionSecret), Peers: p.peers(), PeerKey: p.folder.Secrets.OperatorKey,
		})
		if err != nil {
			return err
		}
		u.service = service
		u.sweep = func(ctx context.Context) error { _, err := service.Sweep(ctx); return err }
		return nil
	case payment.Name:
		secret, err := channelSecret(p.folder.Secrets)
		if err != nil {
			return err
		}
		u.service, err = payment.New(deps, payment.Config{
			UnknownGrace: p.cfg.UnknownGrace, RefundBackoff: backoff(p.cfg.RetryBase, p.cfg.RetryCap),
			Channels: map[string]payment.Channel{channelName: {
				Merchant: merchant, Secrets: secret, CashierURL: cashier,
				API: &channel.Client{BaseURL: world, Secret: secret[0], HTTP: outside, Timeout: 5 * time.Second},
			}},
		})
		return err
	case inventory.Name:
		u.service, err = inventory.New(deps)
	case coupon.Name:
		u.service, err = coupon.New(deps)
	case points.Name:
		u.service, err = points.New(deps)
	case shipping.Name:
		carrier := &shipping.HTTPCarrier{BaseURL: world, Token: worldToken(p.folder.Secrets), HTTP: outside}
		u.service, err = shipping.New(deps, shipping.Config{Carrier: carrier, TrackEvery: p.cfg.TrackEvery})
	case ledger.Name:
		u.service, err = ledger.New(deps)
	case notification.Name:
		messenger := &notification.HTTPMessenger{BaseURL: world, Token: worldToken(p.folder.Secrets), HTTP: outside}
		u.service, err = notification.New(deps, notification.Config{Messenger: messenger})
	case risk.Name:
		u.service, err = risk.New(deps, risk.Config{})
	default:
		err = fmt.Errorf("there is no service %q", name)
	}
	return err
}

// unheard are the events that no service of the platform listens to. Where a broker keeps only what somebody is waiting for, they
// count as sent when nobody is.
func unheard() (subjects []convergo.Subject) {
	for _, eventType := range []string{
		trade.OrderCompleted, trade.StockDeducted, trade.StockReleased, trade.StockReturned, trade.CouponRedeemed, trade.CouponReturned, trade.ShipmentCanceled,
	} {
		subjects = append(subjects, convergo.Subject{Topic: trade.TopicOf(eventType), Type: eventType})
	}
	return subjects
}

// listeners are those of the services that subscribe to something.
func listeners(services []string) (names []string) {
	for _, service := range services {
		if len(check.Subscriptions()[service]) > 0 {
			names = append(names, service)
		}
	}
	return names
}

// topicsOf are the topics that the services read or write: each writes to the one of its name, if there is one.
func topicsOf(services []string) []string {
	written, topics := map[string]bool{}, map[string]bool{}
	for _, types := range check.Subscriptions() {
		for _, eventType := range types {
			written[trade.TopicOf(eventType)] = true
		}
	}
	for _, service := range services {
		if written[service] {
			topics[service] = true
		}
		for _, eventType := range check.Subscriptions()[service] {
			topics[trade.TopicOf(eventType)] = true
		}
	}
	return slices.Sorted(maps.Keys(topics))
}

// prefixesOf are the first path elements that a service serves, whether it runs here or not.
func prefixesOf(name string) []string {
	if s := serviceNamed(name); s != nil {
		return s.Prefixes()
	}
	return nil
}

// serviceNamed is a service that can be asked for what all of its kind have in common; nil when there is none of the name.
func serviceNamed(name string) trade.Service {
	for _, s := range []trade.Service{
		(*order.Service)(nil), (*payment.Service)(nil), (*inventory.Service)(nil), (*coupon.Service)(nil), (*points.Service)(nil),
		(*shipping.Service)(nil), (*ledger.Service)(nil), (*notification.Service)(nil), (*risk.Service)(nil),
	} {
		if s.Name() == name {
			return s
		}
	}
	return nil
}
