package order

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
)

type priceRow struct {
	SKU       string `db:"sku"`
	Offer     string `db:"offer"`
	Currency  string `db:"currency"`
	UnitPrice int64  `db:"unit_price"`
	UpdatedAt int64  `db:"updated_at"`
}

// Product is what is sold, and for how much.
type Product struct {
	SKU       string           `json:"sku"`
	Currency  string           `json:"currency"`
	UnitPrice int64            `json:"unit_price" doc:"minor units of the currency"`
	Price     string           `json:"price" doc:"the same as decimal text"`
	Offers    map[string]int64 `json:"offers,omitempty" doc:"other prices, by offer; an order line may name one"`
	UpdatedAt time.Time        `json:"updated_at"`
}

type putProduct struct {
	SKU  string `path:"sku" maxLength:"64"`
	Body struct {
		Currency  string           `json:"currency" doc:"ISO 4217 code"`
		UnitPrice *int64           `json:"unit_price,omitempty" doc:"minor units; give this or price"`
		Price     string           `json:"price,omitempty" doc:"decimal text such as 19.90, read exactly; give this or unit_price"`
		Offers    map[string]int64 `json:"offers,omitempty" maxProperties:"1000" doc:"other prices in minor units, by offer name"`
	}
}

type productAnswer struct{ Body Product }

func (s *Service) productRoutes(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "put-product", Method: http.MethodPut, Path: "/products/{sku}", Tags: []string{Name},
		Summary:     "Set a product's prices",
		Description: "Operator. Orders that are placed keep the price they were placed at. Offers that are not named stay.",
	}, s.putProduct)
	huma.Register(api, huma.Operation{
		OperationID: "get-product", Method: http.MethodGet, Path: "/products/{sku}", Tags: []string{Name}, Summary: "A product's prices",
	}, func(ctx context.Context, in *struct {
		SKU string `path:"sku" maxLength:"64"`
	}) (*productAnswer, error) {
		out := &productAnswer{}
		err := s.deps.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) (err error) {
			out.Body, err = s.product(ctx, tx, in.SKU)
			return err
		})
		return out, err
	})
}

func (s *Service) putProduct(ctx context.Context, in *putProduct) (*productAnswer, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	prices, err := in.prices()
	if err != nil {
		return nil, err
	}
	out := &productAnswer{}
	err = s.deps.DB.Update(ctx, func(ctx context.Context, tx convergo.Tx) error {
		now := convergo.Micros(s.deps.Now())
		for _, offer := range slices.Sorted(maps.Keys(prices)) { // in one order: two that change one product must not deadlock
			price := prices[offer]
			n, err := s.exec(ctx, tx, "InsertPrice", in.SKU, offer, in.Body.Currency, price, now)
			if err == nil && n == 0 {
				_, err = s.exec(ctx, tx, "UpdatePrice", in.Body.Currency, price, now, in.SKU, offer)
			}
			if err != nil {
				return err
			}
		}
		if err := s.oneCurrency(ctx, tx, in.SKU, in.Body.Currency); err != nil {
			return err
		}
		out.Body, err = s.product(ctx, tx, in.SKU)
		return err
	})
	return out, err
}

// prices by offer; "" is the standard one.
func (in *putProduct) prices() (map[string]int64, error) {
	if err := trade.CheckSKU(in.SKU); err != nil {
		return nil, trade.Invalid("path.sku", err.Error(), "use another SKU")
	}
	if err := trade.CheckCurrency(in.Body.Currency); err != nil {
		return nil, trade.Invalid("body.currency", err.Error(), "use an ISO 4217 code")
	}
	prices := map[string]int64{}
	switch {
	case (in.Body.UnitPrice == nil) == (in.Body.Price == ""):
		return nil, trade.Invalid("body.unit_price", "exactly one of unit_price and price is wanted", "send one of them")
	case in.Body.UnitPrice != nil:
		prices[""] = *in.Body.UnitPrice
	default:
		minor, err := trade.ParseAmount(in.Body.Price, in.Body.Currency)
		if err != nil {
			return nil, trade.Invalid("body.price", err.Error(), "send plain decimal text")
		}
		prices[""] = minor
	}
	for offer, price := range in.Body.Offers {
		if err := trade.CheckSKU(offer); err != nil {
			return nil, trade.Invalid("body.offers", "offer: "+err.Error(), "use another name")
		}
		prices[offer] = price
	}
	for offer, price := range prices {
		if err := trade.CheckMinor(price); err != nil {
			return nil, trade.Invalid("body.unit_price", fmt.Sprintf("offer %q: %s", offer, err), "send a price that is not negative")
		}
	}
	return prices, nil
}

// oneCurrency refuses a product of which an offer that was not named would keep another currency: its number would be read in
// the new one.
func (s *Service) oneCurrency(ctx context.Context, tx convergo.Tx, sku, currency string) error {
	rows, err := selectRows[priceRow](ctx, tx, s.sql.Get("PricesOfProduct"), sku)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if r.Currency != currency {
			return trade.Conflict("body.offers", fmt.Sprintf("offer %q is in %s and was not named", r.Offer, r.Currency),
				"name every offer of the product when its currency changes")
		}
	}
	return nil
}

func (s *Service) product(ctx context.Context, tx convergo.Tx, sku string) (Product, error) {
	rows, err := selectRows[priceRow](ctx, tx, s.sql.Get("PricesOfProduct"), sku)
	if err != nil {
		return Product{}, err
	}
	if len(rows) == 0 {
		return Product{}, trade.NotFound("path.sku", "there is no product with this SKU")
	}
	p := Product{SKU: sku}
	for _, r := range rows {
		if r.Offer != "" {
			if p.Offers == nil {
				p.Offers = map[string]int64{}
			}
			p.Offers[r.Offer] = r.UnitPrice
			continue
		}
		p.Currency, p.UnitPrice, p.Price = r.Currency, r.UnitPrice, trade.FormatAmount(r.UnitPrice, r.Currency)
		p.UpdatedAt = convergo.FromMicros(r.UpdatedAt)
	}
	return p, nil
}
