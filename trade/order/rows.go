package order

import (
	"context"
	"fmt"
	"strings"

	"github.com/georgysavva/scany/v2/sqlscan"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/machine"
	"github.com/convergo/convergo/trade"
)

// row is an order as the table has it. Amounts are minor units, times microseconds.
type row struct {
	OrderNo       string        `db:"order_no"`
	UserID        string        `db:"user_id"`
	Status        machine.State `db:"status"`
	Version       int64         `db:"version"`
	Currency      string        `db:"currency"`
	GoodsTotal    int64         `db:"goods_total"`
	CouponCode    string        `db:"coupon_code"`
	CouponValue   int64         `db:"coupon_value"` // as the coupon service said, before it is limited to the goods
	PointsToSpend int64         `db:"points_to_spend"`
	PointsLocked  int64         `db:"points_locked"`
	StockHeld     bool          `db:"stock_held"`
	CouponHeld    bool          `db:"coupon_held"`
	PointsHeld    bool          `db:"points_held"`
	RiskApproved  bool          `db:"risk_approved"`
	CouponTotal   int64         `db:"coupon_total"`
	PointsSpent   int64         `db:"points_spent"`
	Payable       int64         `db:"payable"`
	PayableAt     int64         `db:"payable_at"`
	Reason        string        `db:"reason"`
	Channel       string        `db:"channel"`
	Transaction   string        `db:"transaction_id"`
	Reference     string        `db:"client_ref"`
	ExpiresAt     int64         `db:"expires_at"`
	RefundCount   int64         `db:"refund_count"`
	CreatedAt     int64         `db:"created_at"`
	UpdatedAt     int64         `db:"updated_at"`
}

// line is an order line with what refunds have taken of it.
type line struct {
	trade.Line
	RefundedQuantity int64 `db:"refunded_quantity"`
	RefundedCoupon   int64 `db:"refunded_coupon"`
	RefundedPoints   int64 `db:"refunded_points"`
	RefundedCash     int64 `db:"refunded_cash"`
}

// refundRow is a refund as the table has it.
type refundRow struct {
	RefundNo    string        `db:"refund_no"`
	OrderNo     string        `db:"order_no"`
	Index       int64         `db:"refund_index"`
	Status      machine.State `db:"status"`
	Version     int64         `db:"version"`
	Amount      int64         `db:"amount"`
	CouponTotal int64         `db:"coupon_total"`
	PointsBack  int64         `db:"points_back"`
	Cash        int64         `db:"cash"`
	Reason      string        `db:"reason"`
	Failure     string        `db:"failure"`
	ChannelID   string        `db:"channel_id"`
	Actor       string        `db:"actor"`
	CreatedAt   int64         `db:"created_at"`
	UpdatedAt   int64         `db:"updated_at"`
}

// refundLine is trade.RefundLine with the names of the table's columns.
type refundLine struct {
	RefundNo    string `db:"refund_no"`
	LineNo      int    `db:"line_no"`
	SKU         string `db:"sku"`
	Quantity    int64  `db:"quantity"`
	Amount      int64  `db:"amount"`
	CouponShare int64  `db:"coupon_share"`
	PointsShare int64  `db:"points_share"`
	Cash        int64  `db:"cash"`
}

func selectRows[T any](ctx context.Context, tx convergo.Tx, query string, args ...any) ([]T, error) {
	var found []T
	if err := sqlscan.Select(ctx, tx, &found, query, args...); err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	return found, nil
}

// findOrder is nil when there is no such order.
func (s *Service) findOrder(ctx context.Context, tx convergo.Tx, no string) (*row, error) {
	found, err := selectRows[row](ctx, tx, s.sql.Get("FindOrder"), no)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return &found[0], nil
}

func (s *Service) lines(ctx context.Context, tx convergo.Tx, no string) ([]line, error) {
	return selectRows[line](ctx, tx, s.sql.Get("LinesOfOrder"), no)
}

func plainLines(lines []line) []trade.Line {
	plain := make([]trade.Line, len(lines))
	for i, l := range lines {
		plain[i] = l.Line
	}
	return plain
}

// exec runs a statement and tells how many rows it changed.
func (s *Service) exec(ctx context.Context, tx convergo.Tx, statement string, args ...any) (int64, error) {
	res, err := tx.ExecContext(ctx, s.sql.Get(statement), args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", statement, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", statement, err)
	}
	return n, nil
}

// rowsPerInsert keeps a statement's parameters below what every database accepts.
const rowsPerInsert = 100

func insertMany[T any](ctx context.Context, tx convergo.Tx, into string, columns []string, rows []T, values func(T) []any) error {
	one := "(" + strings.Repeat("?, ", len(columns)-1) + "?)"
	for len(rows) > 0 {
		n := min(len(rows), rowsPerInsert)
		args := make([]any, 0, n*len(columns))
		for _, r := range rows[:n] {
			args = append(args, values(r)...)
		}
		query := "INSERT INTO " + into + " (" + strings.Join(columns, ", ") + ") VALUES " + strings.Repeat(one+", ", n-1) + one
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return fmt.Errorf("insert into %s: %w", into, err)
		}
		rows = rows[n:]
	}
	return nil
}

func insertLines(ctx context.Context, tx convergo.Tx, orderNo string, lines []trade.Line) error {
	columns := []string{"order_no", "line_no", "sku", "quantity", "unit_price", "amount", "coupon_share", "points_share", "payable",
		"refunded_quantity", "refunded_coupon", "refunded_points", "refunded_cash"}
	return insertMany(ctx, tx, "order_line", columns, lines, func(l trade.Line) []any {
		return []any{orderNo, l.LineNo, l.SKU, l.Quantity, l.UnitPrice, l.Amount, 0, 0, 0, 0, 0, 0, 0}
	})
}

func insertRefundLines(ctx context.Context, tx convergo.Tx, refundNo string, lines []trade.RefundLine) error {
	columns := []string{"refund_no", "line_no", "sku", "quantity", "amount", "coupon_share", "points_share", "cash"}
	return insertMany(ctx, tx, "refund_line", columns, lines, func(l trade.RefundLine) []any {
		return []any{refundNo, l.LineNo, l.SKU, l.Quantity, l.Amount, l.CouponShare, l.PointsShare, l.Cash}
	})
}

// emit adds an event of the order to the outbox. key is empty for the default one.
func (s *Service) emit(ctx context.Context, tx convergo.Tx, eventType string, key convergo.Key, no string, version int64, payload any,
) error {
	e, err := trade.NewEvent(eventType, key, no, version, payload)
	if err != nil {
		return err
	}
	return s.deps.Outbox.Add(ctx, tx, e)
}
