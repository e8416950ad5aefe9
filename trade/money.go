package trade

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// MaxMinor is the largest amount that the platform handles, in minor units: 900,000,000,000,000. It is below 2^53, so an
// amount survives every JSON reader that keeps numbers as doubles, and 2,000 of them still fit in an int64.
const MaxMinor int64 = 9_000_000_000_000_00

// ErrAmount is wrapped by every error of this file that says why an amount is not one.
var ErrAmount = errors.New("bad amount")

// Money is an exact amount: minor units (cents, fen, yen, fils) of a currency by its ISO 4217 code.
type Money struct {
	Minor    int64  `json:"minor"`
	Currency string `json:"currency"`
}

// String is "19.90 CNY", for people.
func (m Money) String() string { return FormatAmount(m.Minor, m.Currency) + " " + m.Currency }

// Exponent is how many decimal places the currency has (ISO 4217: 2 for most, 0 for JPY, 3 for KWD); ok is false for a
// currency that the platform does not know. It never guesses: a wrong exponent is a factor of a hundred.
func Exponent(currency string) (places int, ok bool) {
	switch currency {
	case "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF", "XPF":
		return 0, true
	case "BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND":
		return 3, true
	case "AED", "ARS", "AUD", "BDT", "BGN", "BOB", "BRL", "CAD", "CHF", "CNY", "COP", "CRC", "CZK", "DKK", "DOP", "DZD", "EGP", "EUR",
		"GBP", "GEL", "GHS", "GTQ", "HKD", "HUF", "IDR", "ILS", "INR", "KES", "KHR", "KZT", "LAK", "LKR", "MAD", "MMK", "MNT", "MOP",
		"MXN", "MYR", "NGN", "NOK", "NPR", "NZD", "PEN", "PHP", "PKR", "PLN", "QAR", "RON", "RSD", "SAR", "SEK", "SGD", "THB", "TRY",
		"TWD", "TZS", "UAH", "USD", "UYU", "UZS", "ZAR":
		return 2, true
	}
	return 0, false
}

// ParseAmount reads a decimal text such as "19.90" as minor units of the currency, exactly and without floating point.
// Accepted: ASCII digits without a leading zero (but "0.29"), then at most as many decimals as the currency has. Refused,
// with an error that wraps ErrAmount: everything else, such as signs, blanks, exponents, thousands separators, full-width
// digits, a bare or trailing point, too many decimals, and amounts above MaxMinor. Never rounded.
func ParseAmount(text, currency string) (int64, error) {
	places, ok := Exponent(currency)
	if !ok {
		return 0, fmt.Errorf("currency %q is not known: %w", shorten(currency), ErrAmount)
	}
	refuse := func(why string) (int64, error) {
		return 0, fmt.Errorf("amount %q %s; write it like %q: %w", shorten(text), why, exampleAmount(places), ErrAmount)
	}
	whole, fraction, pointed := strings.Cut(text, ".")
	switch {
	case !allDigits(whole) || (pointed && !allDigits(fraction)):
		return refuse("is not a plain decimal number")
	case len(whole) > 1 && whole[0] == '0':
		return refuse("has a leading zero")
	case len(fraction) > places:
		return refuse(fmt.Sprintf("has more than the %d decimals of %s", places, currency))
	case len(whole) > 16:
		return refuse("is too large")
	}
	minor, err := strconv.ParseInt(whole+fraction+strings.Repeat("0", places-len(fraction)), 10, 64)
	if err != nil || minor > MaxMinor {
		return refuse("is too large")
	}
	return minor, nil
}

func exampleAmount(places int) string { return formatMinor(1234, places) }

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// FormatAmount is the inverse of ParseAmount: minor units as decimal text with the currency's decimals. The minor units
// of an unknown currency are printed as they are.
func FormatAmount(minor int64, currency string) string {
	places, _ := Exponent(currency)
	return formatMinor(minor, places)
}

func formatMinor(minor int64, places int) string {
	digits, sign := strconv.FormatInt(minor, 10), ""
	if minor < 0 {
		digits, sign = digits[1:], "-"
	}
	if places == 0 {
		return sign + digits
	}
	if short := places + 1 - len(digits); short > 0 {
		digits = strings.Repeat("0", short) + digits
	}
	point := len(digits) - places
	return sign + digits[:point] + "." + digits[point:]
}

// Add is a+b; an error when the result is outside −MaxMinor … MaxMinor.
func Add(a, b int64) (int64, error) {
	sum := a + b
	if (b > 0 && sum < a) || (b < 0 && sum > a) || sum > MaxMinor || sum < -MaxMinor {
		return 0, fmt.Errorf("%d + %d is beyond the largest amount %d: %w", a, b, MaxMinor, ErrAmount)
	}
	return sum, nil
}

// Mul is a×b for a, b ≥ 0, for example a price and a quantity; an error when the result is above MaxMinor or a factor is negative.
func Mul(a, b int64) (int64, error) {
	if a < 0 || b < 0 {
		return 0, fmt.Errorf("%d × %d has a negative factor: %w", a, b, ErrAmount)
	}
	high, low := bits.Mul64(uint64(a), uint64(b))
	if high != 0 || low > uint64(MaxMinor) {
		return 0, fmt.Errorf("%d × %d is beyond the largest amount %d: %w", a, b, MaxMinor, ErrAmount)
	}
	return int64(low), nil
}

// Allocate splits total over the weights by largest remainder: the shares are whole, sum to total exactly, differ from
// the exact proportion by less than one, and depend only on the arguments: of equal remainders the earlier share gets the
// unit. A share is never above its weight when total is not above the sum of the weights. Weights that are all zero count as
// equal. total and weights are not negative and the weights sum to an int64; without weights total must be 0.
func Allocate(total int64, weights []int64) []int64 {
	if total < 0 {
		panic("trade.Allocate: negative total")
	}
	shares := make([]int64, len(weights))
	if total == 0 {
		return shares
	}
	sum := weightSum(weights)
	if sum == 0 {
		weights, sum = slices.Repeat([]int64{1}, len(weights)), int64(len(weights))
	}
	type fraction struct {
		index     int
		remainder uint64
	}
	left, order := total, make([]fraction, len(weights))
	for i, w := range weights {
		share, remainder := mulDiv(total, w, sum)
		shares[i], order[i] = share, fraction{i, remainder}
		left -= share
	}
	slices.SortStableFunc(order, func(a, b fraction) int { return cmp.Compare(b.remainder, a.remainder) })
	for i := range left { // left < the number of shares with a remainder
		shares[order[i].index]++
	}
	return shares
}

func weightSum(weights []int64) (sum int64) {
	if len(weights) == 0 {
		panic("trade.Allocate: nothing to allocate to")
	}
	for _, w := range weights {
		if w < 0 || sum+w < sum {
			panic("trade.Allocate: negative or overflowing weights")
		}
		sum += w
	}
	return sum
}

// Cumulative is the share of the first k of n pieces of total, rounded down: the pieces Cumulative(k)−Cumulative(k−1) sum
// to total, whatever the order or the grouping in which they are taken. 0 ≤ k ≤ n, n > 0, total ≥ 0.
func Cumulative(total, k, n int64) int64 {
	if total < 0 || k < 0 || k > n || n <= 0 {
		panic(fmt.Sprintf("trade.Cumulative(%d, %d, %d): outside 0 ≤ k ≤ n, n > 0, total ≥ 0", total, k, n))
	}
	share, _ := mulDiv(total, k, n)
	return share
}

// mulDiv is a×b/c and its remainder through 128 bits; the quotient fits because b ≤ c.
func mulDiv(a, b, c int64) (int64, uint64) {
	high, low := bits.Mul64(uint64(a), uint64(b))
	quotient, remainder := bits.Div64(high, low, uint64(c))
	return int64(quotient), remainder
}
