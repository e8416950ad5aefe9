package trade

import (
	"errors"
	"fmt"
	"strings"

	"github.com/convergo/convergo"
)

// Limits of what a request may carry.
const (
	MaxSKU      = 64        // bytes of a SKU
	MaxID       = 64        // bytes of a user id, an order number, a coupon code
	MaxQuantity = 1_000_000 // pieces of one line
	MaxLines    = 2_000     // lines of one order
)

// ErrName is wrapped by the errors of CheckSKU, CheckID, CheckQuantity and CheckCurrency.
var ErrName = errors.New("bad value")

// CheckSKU tells whether s is a SKU: 1 to 64 characters of A-Z a-z 0-9 . _ -
func CheckSKU(s string) error { return checkName("SKU", s, MaxSKU) }

// CheckUserID tells whether s is a user id: 1 to 64 characters of A-Z a-z 0-9 . _ -
func CheckUserID(s string) error { return checkName("user id", s, MaxID) }

// CheckOrderNo tells whether s can be an order number: 1 to 64 characters of A-Z a-z 0-9 . _ -
func CheckOrderNo(s string) error { return checkName("order number", s, MaxID) }

// CheckCouponCode tells whether s can be a coupon code: 1 to 64 characters of A-Z a-z 0-9 . _ -
func CheckCouponCode(s string) error { return checkName("coupon code", s, MaxID) }

// CheckQuantity tells whether n is a number of pieces: 1 to 1,000,000.
func CheckQuantity(n int64) error {
	if n < 1 || n > MaxQuantity {
		return fmt.Errorf("quantity %d is not between 1 and %d: %w", n, MaxQuantity, ErrName)
	}
	return nil
}

// CheckCurrency tells whether the platform knows the ISO 4217 code.
func CheckCurrency(code string) error {
	if _, ok := Exponent(code); !ok {
		return fmt.Errorf("currency %q is not known; use an ISO 4217 code such as CNY, USD, JPY: %w", shorten(code), ErrName)
	}
	return nil
}

// CheckMinor tells whether n is an amount in minor units: 0 to MaxMinor.
func CheckMinor(n int64) error {
	if n < 0 || n > MaxMinor {
		return fmt.Errorf("amount %d is not between 0 and %d minor units: %w", n, MaxMinor, ErrName)
	}
	return nil
}

func checkName(what, s string, most int) error {
	if s == "" || len(s) > most {
		return fmt.Errorf("%s %q has %d characters, not 1 to %d: %w", what, shorten(s), len(s), most, ErrName)
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-' {
			return fmt.Errorf("%s %q has a character other than A-Z a-z 0-9 . _ -: %w", what, shorten(s), ErrName)
		}
	}
	return convergo.Key(s).Validate()
}

// shorten cuts a text from outside so that an error stays readable; what is left is valid UTF-8.
func shorten(s string) string {
	const most = 80
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
