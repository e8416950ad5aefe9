package points

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/convergo/convergo"
	"github.com/convergo/convergo/trade"
)

// maxPoints is the largest balance and the largest debt.
const maxPoints = trade.MaxMinor

// account is a customer's points.
type account struct {
	userID  string
	balance int64 // locked ones included
	locked  int64
	debt    int64
}

// account is nil when the customer never had a point.
func (s *Service) account(ctx context.Context, tx convergo.Tx, userID string) (*account, error) {
	var a account
	var at int64
	err := tx.QueryRowContext(ctx, s.sql.Get("FindAccount"), userID).Scan(&a.userID, &a.balance, &a.locked, &a.debt, &at)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find points of %s: %w", userID, err)
	}
	return &a, nil
}

// entry is one change of a customer's points: by how much balance - debt and locked change.
type entry struct {
	key     string
	kind    string
	userID  string
	orderNo string
	points  int64
	locked  int64
	cause   convergo.Key
	undoes  convergo.Key // the effect that this one undoes as a whole
}

// record writes the entry and its effect; fresh is false, and nothing is written, when the change was made before. The
// caller changes the balance in the same transaction.
func (s *Service) record(ctx context.Context, tx convergo.Tx, n entry) (fresh bool, err error) {
	at := s.Now()
	added, err := s.change(ctx, tx, "AddEntry", n.key, n.userID, n.kind, n.points, n.locked, n.orderNo, string(n.cause), convergo.Micros(at))
	if err != nil || added == 0 {
		return false, err
	}
	return trade.RecordEffect(ctx, tx, s.DB.Dialect(), trade.Effect{
		Key: convergo.Key(n.key), OrderNo: n.orderNo, Kind: "points." + strings.ToLower(n.kind), Reverses: n.undoes, Cause: n.cause,
		Detail: fmt.Sprintf(`{"user":%q,"points":%d,"locked":%d}`, n.userID, n.points, n.locked), At: at,
	})
}

// mustRecord is record where the order's state says that the change was never made: an entry that is there contradicts it,
// and a person must look.
func (s *Service) mustRecord(ctx context.Context, tx convergo.Tx, n entry) error {
	fresh, err := s.record(ctx, tx, n)
	if err == nil && !fresh {
		err = convergo.Permanent(fmt.Errorf("order %s: entry %s is there although the order's state says that it cannot be", n.orderNo, n.key))
	}
	return err
}

// credit adds points; a debt is paid first.
func (s *Service) credit(ctx context.Context, tx convergo.Tx, userID string, n int64) error {
	now := convergo.Micros(s.Now())
	if _, err := s.change(ctx, tx, "OpenAccount", userID, now); err != nil {
		return err
	}
	changed, err := s.change(ctx, tx, "Credit", n, n, n, n, now, userID, maxPoints-n)
	if err == nil && changed == 0 {
		err = convergo.Permanent(fmt.Errorf("%s would have more than %d points: %w", userID, maxPoints, convergo.ErrInvalid))
	}
	return err
}

// debit takes points that are not locked; what the balance lacks becomes debt.
func (s *Service) debit(ctx context.Context, tx convergo.Tx, userID string, n int64) error {
	changed, err := s.change(ctx, tx, "Debit", n, n, n, n, convergo.Micros(s.Now()), userID, maxPoints-n)
	if err == nil && changed == 0 {
		err = convergo.Permanent(fmt.Errorf("%s has no account, or would owe more than %d points: %w", userID, maxPoints, convergo.ErrInvalid))
	}
	return err
}

// unlock frees locked points, of which spent are gone. Points that become free pay a debt.
func (s *Service) unlock(ctx context.Context, tx convergo.Tx, userID string, locked, spent int64) error {
	changed, err := s.change(ctx, tx, "Spend", locked, spent, convergo.Micros(s.Now()), userID, locked, spent)
	if err != nil {
		return err
	}
	if changed == 0 {
		return convergo.Permanent(fmt.Errorf("the account of %s does not cover %d locked points; it was changed from outside", userID, locked))
	}
	a, err := s.account(ctx, tx, userID)
	if err != nil || a == nil || a.debt == 0 || a.balance == a.locked {
		return err
	}
	pay := min(a.debt, a.balance-a.locked)
	paid, err := s.change(ctx, tx, "PayDebt", pay, pay, userID, pay, pay)
	if err == nil && paid == 0 {
		err = fmt.Errorf("the account of %s changed between two statements of a transaction that had locked it; try again", userID)
	}
	return err
}
