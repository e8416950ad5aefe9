package inventory

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/georgysavva/scany/v2/sqlscan"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
)

// Limits of a receipt and of an answer.
const (
	maxReceipt = 1_000_000_000         // pieces in one delivery
	maxPieces  = 1_000_000_000_000_000 // on hand and sold of one SKU
	maxKey     = 200                   // bytes, so that it is a key also with its prefix
	pageSize   = 200
)

// Stock is what there is of a SKU, in pieces.
type Stock struct {
	SKU       string    `json:"sku"`
	OnHand    int64     `json:"on_hand" doc:"in the warehouse, held ones included"`
	Reserved  int64     `json:"reserved" doc:"held by orders that are not paid yet"`
	Sold      int64     `json:"sold" doc:"deducted and not returned"`
	Available int64     `json:"available" doc:"on_hand - reserved"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Flow is one change of a SKU's numbers.
type Flow struct {
	Key      string    `json:"key"`
	SKU      string    `json:"sku"`
	Kind     string    `json:"kind" enum:"RECEIVE,RESERVE,RELEASE,DEDUCT,RETURN"`
	Quantity int64     `json:"quantity"`
	OrderNo  string    `json:"order_no,omitempty"`
	Cause    string    `json:"cause" doc:"key of the event or the request"`
	At       time.Time `json:"at"`
}

// Receipt is the body of POST /stock/receipts.
type Receipt struct {
	SKU      string `json:"sku" minLength:"1" maxLength:"64"`
	Quantity int64  `json:"quantity" minimum:"1" maximum:"1000000000"`
	Key      string `json:"key" minLength:"1" maxLength:"200" doc:"number of the delivery note; a second receipt with it adds nothing"`
}

// Routes registers the operations on stock.
func (s *Service) Routes(api huma.API) {
	tags := []string{Name}
	huma.Register(api, huma.Operation{OperationID: "receive-stock", Method: http.MethodPost, Path: "/stock/receipts", Tags: tags,
		Summary: "Add delivered pieces to a SKU's stock", DefaultStatus: http.StatusCreated}, s.receive)
	huma.Register(api, huma.Operation{OperationID: "get-stock", Method: http.MethodGet, Path: "/stock/{sku}", Tags: tags,
		Summary: "Stock of a SKU"}, s.get)
	huma.Register(api, huma.Operation{OperationID: "list-stock", Method: http.MethodGet, Path: "/stock", Tags: tags,
		Summary: "Stock of all SKUs, or of those that run low"}, s.list)
	huma.Register(api, huma.Operation{OperationID: "get-stock-flow", Method: http.MethodGet, Path: "/stock/{sku}/flow", Tags: tags,
		Summary: "Every change of a SKU's numbers, oldest first"}, s.flowOf)
	trade.RegisterStory(api, s.Deps, Name)
}

type stockOutput struct{ Body Stock }

func (s *Service) receive(ctx context.Context, in *struct{ Body Receipt }) (*stockOutput, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	r := in.Body
	if err := trade.CheckSKU(r.SKU); err != nil {
		return nil, trade.Invalid("body.sku", err.Error(), "use the SKU of PUT /products/{sku}")
	}
	if r.Quantity < 1 || r.Quantity > maxReceipt {
		return nil, trade.Invalid("body.quantity", fmt.Sprintf("quantity %d is not between 1 and %d", r.Quantity, maxReceipt),
			"split the delivery")
	}
	if err := convergo.Key(r.Key).Validate(); err != nil || len(r.Key) > maxKey {
		return nil, trade.Invalid("body.key", fmt.Sprintf("the key is no text of 1 to %d bytes without blanks around it", maxKey),
			"use the number of the delivery note")
	}
	tx := trade.TxOf(ctx)
	if err := s.Receive(ctx, tx, r, trade.RequestKey(ctx)); err != nil {
		return nil, err
	}
	stock, err := s.stock(ctx, tx, r.SKU)
	if err != nil {
		return nil, err
	}
	return &stockOutput{*stock}, nil
}

// Receive adds delivered pieces to a SKU's stock, once per r.Key, and makes the SKU known. The error is a trade.Problem when
// the key was used for another delivery or the stock would grow beyond reason.
func (s *Service) Receive(ctx context.Context, tx convergo.Tx, r Receipt, cause convergo.Key) error {
	now, key := convergo.Micros(s.Now()), receive+":"+r.Key
	fresh, err := s.flow(ctx, tx, key, receive, "", need{r.SKU, r.Quantity}, cause, "")
	if err != nil {
		return err
	}
	if !fresh {
		var before Flow
		var at int64
		err := tx.QueryRowContext(ctx, s.sql.Get("FindFlow"), key).
			Scan(&before.Key, &before.SKU, &before.Kind, &before.Quantity, &before.OrderNo, &before.Cause, &at)
		switch {
		case err != nil:
			return fmt.Errorf("find receipt %s: %w", key, err)
		case before.SKU != r.SKU || before.Quantity != r.Quantity:
			return trade.Conflict("body.key", fmt.Sprintf("key %q was used for %d pieces of %s", r.Key, before.Quantity, before.SKU),
				"use another key for another delivery")
		}
		return nil
	}
	if _, err := s.change(ctx, tx, "OpenStock", r.SKU, now); err != nil {
		return err
	}
	added, err := s.change(ctx, tx, "Receive", r.Quantity, now, r.SKU, maxPieces-r.Quantity)
	if err == nil && added == 0 {
		err = trade.Invalid("body.quantity", fmt.Sprintf("%s would have more than %d pieces", r.SKU, int64(maxPieces)), "check the quantity")
	}
	return err
}

func (s *Service) get(ctx context.Context, in *struct {
	SKU string `path:"sku" maxLength:"64"`
}) (*stockOutput, error) {
	var stock *Stock
	err := s.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) (err error) {
		stock, err = s.stock(ctx, tx, in.SKU)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case stock == nil:
		return nil, trade.NotFound("path.sku", fmt.Sprintf("SKU %q has no stock row; POST /stock/receipts makes one", in.SKU))
	}
	return &stockOutput{*stock}, nil
}

type listInput struct {
	Low   int64  `query:"low" default:"1000000000000000" doc:"only SKUs with at most this many pieces available"`
	After string `query:"after" maxLength:"64" doc:"SKU after which the page starts"`
	Limit int    `query:"limit" default:"200" minimum:"1" maximum:"200"`
}

type listOutput struct {
	Body struct {
		Stock []Stock `json:"stock"`
		Next  string  `json:"next,omitempty" doc:"pass it as after to get the next page"`
	}
}

func (s *Service) list(ctx context.Context, in *listInput) (*listOutput, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	out := &listOutput{}
	out.Body.Stock = []Stock{}
	err := s.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		var rows []stockRow
		if err := sqlscan.Select(ctx, tx, &rows, s.sql.Get("ListStock"), in.After, in.Low, in.Limit); err != nil {
			return fmt.Errorf("list stock: %w", err)
		}
		for _, r := range rows {
			out.Body.Stock = append(out.Body.Stock, r.stock())
		}
		if len(rows) == in.Limit {
			out.Body.Next = rows[len(rows)-1].SKU
		}
		return nil
	})
	return out, err
}

type flowOutput struct {
	Body struct {
		Flow []Flow `json:"flow"`
		// The two together are the place in the list where the next page starts.
		NextSince int64  `json:"next_since,omitempty" doc:"pass it as since to get the next page"`
		NextAfter string `json:"next_after,omitempty" doc:"pass it as after to get the next page"`
	}
}

func (s *Service) flowOf(ctx context.Context, in *struct {
	SKU   string `path:"sku" maxLength:"64"`
	Since int64  `query:"since" doc:"microseconds since 1970; entries before are left out"`
	After string `query:"after" maxLength:"255" doc:"key; entries of the moment since up to this key are left out"`
}) (*flowOutput, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	out := &flowOutput{}
	out.Body.Flow = []Flow{}
	err := s.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		var rows []flowRow
		if err := sqlscan.Select(ctx, tx, &rows, s.sql.Get("FlowOf"), in.SKU, in.Since, in.Since, in.After, pageSize); err != nil {
			return fmt.Errorf("flow of %s: %w", in.SKU, err)
		}
		for _, r := range rows {
			out.Body.Flow = append(out.Body.Flow, Flow{r.FlowKey, r.SKU, r.Kind, r.Quantity, r.OrderNo, r.Cause, convergo.FromMicros(r.At)})
		}
		if len(rows) == pageSize {
			out.Body.NextSince, out.Body.NextAfter = rows[pageSize-1].At, rows[pageSize-1].FlowKey
		}
		return nil
	})
	return out, err
}

type stockRow struct {
	SKU       string
	OnHand    int64
	Reserved  int64
	Sold      int64
	UpdatedAt int64
}

func (r stockRow) stock() Stock {
	return Stock{r.SKU, r.OnHand, r.Reserved, r.Sold, r.OnHand - r.Reserved, convergo.FromMicros(r.UpdatedAt)}
}

type flowRow struct {
	FlowKey  string
	SKU      string
	Kind     string
	Quantity int64
	OrderNo  string
	Cause    string
	At       int64
}

// stock is nil when the SKU is not known.
func (s *Service) stock(ctx context.Context, tx convergo.Tx, sku string) (*Stock, error) {
	var r stockRow
	err := tx.QueryRowContext(ctx, s.sql.Get("FindStock"), sku).Scan(&r.SKU, &r.OnHand, &r.Reserved, &r.Sold, &r.UpdatedAt)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find stock of %s: %w", sku, err)
	}
	stock := r.stock()
	return &stock, nil
}
