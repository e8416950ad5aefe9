// Package shipping is the service that has paid orders carried: one shipment per order, booked at a carrier outside, tracked
// until it is delivered, canceled when everything is refunded before it left.
package shipping

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/georgysavva/scany/v2/sqlscan"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/inbox"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/outside"
	"github.com/convergo/convergo/sqltext"
	"github.com/convergo/convergo/trade"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

//go:embed queries.sql
var queryFile embed.FS

// Name of the service, its database, its topic and its consumer.
const Name = "shipping"

// States of a shipment.
const (
	Booking    machine.State = "BOOKING" // the carrier is being asked
	Dispatched machine.State = "DISPATCHED"
	Delivered  machine.State = "DELIVERED"
	Canceling  machine.State = "CANCELING" // everything was refunded; the carrier is being told
	Canceled   machine.State = "CANCELED"
	Failed     machine.State = "FAILED" // the carrier refused it, or gave it up on its way: a person's case
)

// Shipments is the shipment's state machine. CANCELING → DISPATCHED is a parcel that could not be stopped any more.
func Shipments() machine.Machine {
	return machine.Machine{
		Name: "shipment", Table: "shipment", ID: "order_no", State: "state", Version: "version",
		Moves: []machine.Move{
			{Name: "dispatch", From: []machine.State{Booking, Canceling}, To: Dispatched},
			{Name: "deliver", From: []machine.State{Dispatched}, To: Delivered},
			{Name: "canceling", From: []machine.State{Booking}, To: Canceling},
			{Name: "cancel", From: []machine.State{Canceling, Failed}, To: Canceled},
			{Name: "fail", From: []machine.State{Booking, Dispatched}, To: Failed},
		},
		Initial: []machine.State{Booking, Canceled},
	}
}

// Carrier is what the service asks of a carrier. Errors carry verdicts: convergo.Permanent is a definite refusal.
type Carrier interface {
	// Book asks for a parcel to be carried; the same key again is the same booking.
	Book(ctx context.Context, r BookingRequest) (Tracking, error)
	// Booking asks what became of a key; known is false when the carrier has no trace of it.
	Booking(ctx context.Context, key string) (t Tracking, known bool, err error)
	// Cancel stops a parcel, also one that the carrier has not heard of; canceled is false when it is on its way already.
	Cancel(ctx context.Context, key string) (canceled bool, err error)
}

// BookingRequest is what the carrier is asked to carry.
type BookingRequest struct {
	Key     string `json:"key"`
	OrderNo string `json:"order_no"`
	Pieces  int64  `json:"pieces"`
}

// Tracking is what the carrier says of a booking.
type Tracking struct {
	TrackingNo string `json:"tracking_no"`
	State      string `json:"state"`
}

// States of a booking at the carrier that the service acts on.
const (
	CarrierDelivered = "DELIVERED"
	CarrierCanceled  = "CANCELED"
)

// Config of the shipping service. Carrier is required.
type Config struct {
	Carrier Carrier
	// TrackEvery is how often the carrier is asked whether a parcel has arrived; default 1 h.
	TrackEvery time.Duration
}

// Service is the shipping service; it is a trade.Service.
type Service struct {
	deps trade.Deps
	cfg  Config
	sql  sqltext.Set
}

var _ trade.Service = (*Service)(nil)

// New makes the service. It fails when there is no carrier.
func New(deps trade.Deps, cfg Config) (*Service, error) {
	if cfg.Carrier == nil {
		return nil, errors.New("shipping: Config.Carrier is missing")
	}
	if cfg.TrackEvery <= 0 {
		cfg.TrackEvery = time.Hour
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	set, err := sqltext.Load(queryFile, "queries.sql", deps.DB.Dialect())
	if err != nil {
		return nil, fmt.Errorf("shipping: %w", err)
	}
	return &Service{deps: deps, cfg: cfg, sql: set}, nil
}

// Name is "shipping".
func (s *Service) Name() string { return Name }

// Migrations are the service's own tables.
func (s *Service) Migrations() fs.FS { return Migrations() }

// Migrations are the service's own tables; the same without a Service.
func Migrations() fs.FS {
	sub, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return sub
}

// Prefixes that the service answers.
func (s *Service) Prefixes() []string { return []string{"/shipments", "/" + Name} }

// Handlers by event type.
func (s *Service) Handlers() map[string]inbox.Handler[convergo.Tx] {
	return map[string]inbox.Handler[convergo.Tx]{
		trade.OrderPaid: s.onPaid, trade.RefundApproved: s.onRefunded, trade.OrderRefunded: s.onRefunded,
	}
}

// Kinds of the outgoing calls.
const (
	callBook   = "carrier.book"
	callTrack  = "carrier.track"
	callCancel = "carrier.cancel"
)

// Calls by kind.
func (s *Service) Calls() map[string]outside.Handler[convergo.Tx] {
	return map[string]outside.Handler[convergo.Tx]{
		callBook:   {Do: s.book, Query: s.askBooking, Done: s.booked, Refused: s.bookingRefused},
		callTrack:  {Do: s.track, Done: s.tracked},
		callCancel: {Do: s.cancel, Done: s.cancelAnswered},
	}
}

// Shipment is the body of GET /shipments/{order_no}.
type Shipment struct {
	OrderNo    string    `json:"order_no"`
	State      string    `json:"state"`
	Pieces     int64     `json:"pieces"`
	TrackingNo string    `json:"tracking_no,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
	UpdatedAt  time.Time `json:"updated_at"`
}

type shipmentOutput struct{ Body Shipment }

// Routes registers the operations.
func (s *Service) Routes(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "get-shipment", Method: http.MethodGet, Path: "/shipments/{order_no}", Tags: []string{Name},
		Summary: "The shipment of an order",
	}, s.get)
	huma.Register(api, huma.Operation{
		OperationID: "list-shipments", Method: http.MethodGet, Path: "/shipments", Tags: []string{Name}, Summary: "Shipments in a state",
		Description: "Operator. FAILED ones wait for a person: the carrier refused the parcel, or gave it up on its way. A full refund of the " +
			"order ends them.",
		Errors: []int{http.StatusForbidden},
	}, s.list)
	trade.RegisterStory(api, s.deps, Name)
}

func (s *Service) get(ctx context.Context, in *struct {
	OrderNo string `path:"order_no" maxLength:"64"`
}) (*shipmentOutput, error) {
	var out *shipmentOutput
	err := s.deps.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		row, err := s.find(ctx, tx, in.OrderNo)
		if err != nil {
			return err
		}
		if row == nil || !trade.Owns(ctx, row.UserID) {
			return trade.NotFound("path.order_no", "no order of yours with a shipment has this number")
		}
		out = &shipmentOutput{row.view()}
		return nil
	})
	return out, err
}

// ShipmentList is a page of shipments, by order number.
type ShipmentList struct {
	Shipments []Shipment `json:"shipments"`
	Next      string     `json:"next,omitempty" doc:"give it as after for the next page; missing on the last"`
}

func (s *Service) list(ctx context.Context, in *struct {
	State string `query:"state" enum:"BOOKING,DISPATCHED,DELIVERED,CANCELING,CANCELED,FAILED" default:"FAILED"`
	After string `query:"after" maxLength:"64" doc:"the last order number of the page before"`
	Limit int    `query:"limit" minimum:"1" maximum:"500" default:"100"`
}) (*struct{ Body ShipmentList }, error) {
	if err := trade.RequireOperator(ctx); err != nil {
		return nil, err
	}
	out := &struct{ Body ShipmentList }{ShipmentList{Shipments: []Shipment{}}}
	return out, s.deps.DB.View(ctx, func(ctx context.Context, tx convergo.Tx) error {
		var rows []shipmentRow
		if err := sqlscan.Select(ctx, tx, &rows, s.sql.Get("ShipmentsInState"), in.State, in.After, in.Limit+1); err != nil {
			return fmt.Errorf("shipping: list shipments: %w", err)
		}
		for i, row := range rows {
			if i == in.Limit {
				out.Body.Next = rows[i-1].OrderNo
				break
			}
			out.Body.Shipments = append(out.Body.Shipments, row.view())
		}
		return nil
	})
}

type shipmentRow struct {
	OrderNo    string        `db:"order_no"`
	UserID     string        `db:"user_id"`
	State      machine.State `db:"state"`
	Version    int64         `db:"version"`
	Pieces     int64         `db:"pieces"`
	BookingKey string        `db:"booking_key"`
	TrackingNo string        `db:"tracking_no"`
	Reason     string        `db:"reason"`
	CreatedAt  int64         `db:"created_at"`
	UpdatedAt  int64         `db:"updated_at"`
}

func (r shipmentRow) view() Shipment {
	return Shipment{
		r.OrderNo, string(r.State), r.Pieces, r.TrackingNo, r.Reason, convergo.FromMicros(r.CreatedAt), convergo.FromMicros(r.UpdatedAt),
	}
}

// find is nil when the order has no shipment.
func (s *Service) find(ctx context.Context, tx convergo.Tx, orderNo string) (*shipmentRow, error) {
	var row shipmentRow
	err := sqlscan.Get(ctx, tx, &row, s.sql.Get("FindShipment"), orderNo)
	if sqlscan.NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("shipping: find shipment of %s: %w", orderNo, err)
	}
	return &row, nil
}

func (s *Service) exec(ctx context.Context, tx convergo.Tx, statement string, args ...any) (int64, error) {
	result, err := tx.ExecContext(ctx, s.sql.Get(statement), args...)
	if err != nil {
		return 0, fmt.Errorf("shipping: %s: %w", statement, err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("shipping: %s: %w", statement, err)
	}
	return n, nil
}
