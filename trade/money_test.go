package trade

import (
	"errors"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestCaseB34AmountsAreReadExactlyOrRefused(t *testing.T) {
	for _, c := range []struct {
		text, currency string
		want           int64
	}{
		{"19.90", "CNY", 1990}, {"4.35", "CNY", 435}, {"0.29", "CNY", 29}, {"1.13", "CNY", 113}, {"8.80", "CNY", 880}, {"9.9", "CNY", 990},
		{"7", "CNY", 700}, {"0", "CNY", 0}, {"9899", "JPY", 9899}, {"1.234", "KWD", 1234}, {"9000000000000.00", "USD", MaxMinor},
	} {
		got, err := ParseAmount(c.text, c.currency)
		if err != nil || got != c.want {
			t.Errorf("ParseAmount(%q, %s) = %d, %v; want %d", c.text, c.currency, got, err, c.want)
		}
	}
	for _, c := range [][2]string{
		{"1.2345", "KWD"}, {"1e2", "CNY"}, {"1,000.00", "CNY"}, {" 1.00", "CNY"}, {"1.00 ", "CNY"}, {"１.00", "CNY"}, {"-0.01", "CNY"},
		{"9.995", "CNY"}, {"+1", "CNY"}, {"", "CNY"}, {".", "CNY"}, {".5", "CNY"}, {"5.", "CNY"}, {"1.0.0", "CNY"}, {"00.29", "CNY"},
		{"0x10", "CNY"}, {"1_000", "CNY"}, {"NaN", "CNY"}, {"9899.0", "JPY"}, {"9000000000000.01", "USD"}, {"99999999999999999999", "JPY"},
		{strings.Repeat("9", 10_000), "CNY"}, {"1.00", "cny"}, {"1.00", "XYZ"}, {"1.00", ""}, {"1\x00", "CNY"},
	} {
		if got, err := ParseAmount(c[0], c[1]); !errors.Is(err, ErrAmount) {
			t.Errorf("ParseAmount(%.40q, %s) = %d, %v; want it refused", c[0], c[1], got, err)
		}
	}
}

func TestAnAmountSurvivesFormattingAndParsing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		minor := rapid.Int64Range(0, MaxMinor).Draw(t, "minor")
		currency := rapid.SampledFrom([]string{"CNY", "JPY", "KWD"}).Draw(t, "currency")
		got, err := ParseAmount(FormatAmount(minor, currency), currency)
		if err != nil || got != minor {
			t.Fatalf("%d %s is formatted as %q and read as %d, %v", minor, currency, FormatAmount(minor, currency), got, err)
		}
	})
	if got := FormatAmount(-5, "CNY"); got != "-0.05" {
		t.Errorf("FormatAmount(-5, CNY) = %q", got)
	}
}

func TestSumsAndProductsSayWhenTheyOverflow(t *testing.T) {
	if got, err := Add(MaxMinor-1, 1); err != nil || got != MaxMinor {
		t.Errorf("Add up to the limit = %d, %v", got, err)
	}
	for _, c := range [][2]int64{{MaxMinor, 1}, {math.MaxInt64, 1}, {math.MinInt64, -1}, {-MaxMinor, -1}} {
		if got, err := Add(c[0], c[1]); !errors.Is(err, ErrAmount) {
			t.Errorf("Add(%d, %d) = %d, %v", c[0], c[1], got, err)
		}
	}
	if got, err := Mul(MaxQuantity, 900_000_000); err != nil || got != MaxMinor {
		t.Errorf("Mul up to the limit = %d, %v", got, err)
	}
	for _, c := range [][2]int64{{MaxMinor, 2}, {math.MaxInt64, math.MaxInt64}, {1 << 32, 1 << 32}, {-1, 5}, {5, -1}} {
		if got, err := Mul(c[0], c[1]); !errors.Is(err, ErrAmount) {
			t.Errorf("Mul(%d, %d) = %d, %v", c[0], c[1], got, err)
		}
	}
}

func TestCaseB45PartsSumToTheWhole(t *testing.T) {
	for _, c := range []struct {
		total   int64
		weights []int64
		want    []int64
	}{
		{1000, []int64{3333, 3333, 3334}, []int64{333, 333, 334}},
		{1000, []int64{1, 1, 1}, []int64{334, 333, 333}}, // a tie: the earlier share gets the unit
		{17600, []int64{8800, 8800}, []int64{8800, 8800}},
		{5, []int64{0, 0}, []int64{3, 2}},
		{0, nil, []int64{}},
		{7, []int64{0, 10, 0}, []int64{0, 7, 0}},
	} {
		if got := Allocate(c.total, c.weights); !slices.Equal(got, c.want) {
			t.Errorf("Allocate(%d, %v) = %v, want %v", c.total, c.weights, got, c.want)
		}
	}
	var pieces []int64
	for k := int64(1); k <= 3; k++ {
		pieces = append(pieces, Cumulative(1000, k, 3)-Cumulative(1000, k-1, 3))
	}
	if !slices.Equal(pieces, []int64{333, 333, 334}) {
		t.Errorf("three pieces of 1000 one by one: %v", pieces)
	}
}

func TestAllocationsAreExactFairAndStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.Int64Range(0, MaxMinor), 1, 40).Draw(t, "weights")
		total := rapid.Int64Range(0, MaxMinor).Draw(t, "total")
		before, sum := slices.Clone(weights), new(big.Int)
		for _, w := range weights {
			sum.Add(sum, big.NewInt(w))
		}
		shares := Allocate(total, weights)
		var all int64
		for i, s := range shares {
			all += s
			if sum.Sign() == 0 {
				continue
			}
			// |share − total×w/sum| < 1
			exact := new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(total), big.NewInt(weights[i])), sum)
			diff := new(big.Rat).Sub(new(big.Rat).SetInt64(s), exact)
			if diff.Abs(diff).Cmp(big.NewRat(1, 1)) >= 0 {
				t.Fatalf("share %d of weight %d is off by %s", s, weights[i], diff)
			}
			if sum.Cmp(big.NewInt(total)) >= 0 && s > weights[i] {
				t.Fatalf("share %d is above its weight %d", s, weights[i])
			}
		}
		if all != total {
			t.Fatalf("shares sum to %d, not %d", all, total)
		}
		if !slices.Equal(before, weights) {
			t.Fatal("the weights were changed")
		}
	})
}

func TestPiecesSumToTheWholeInWhateverGroupsTheyGo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total, n := rapid.Int64Range(0, MaxMinor).Draw(t, "total"), rapid.Int64Range(1, MaxQuantity).Draw(t, "n")
		var sum int64
		for k := int64(0); k < n; {
			next := min(n, k+rapid.Int64Range(1, n).Draw(t, "group"))
			part := Cumulative(total, next, n) - Cumulative(total, k, n)
			if part < 0 {
				t.Fatalf("pieces %d to %d of %d in %d are worth %d", k, next, n, total, part)
			}
			sum, k = sum+part, next
		}
		if sum != total {
			t.Fatalf("parts sum to %d, not %d", sum, total)
		}
	})
}

func TestNamesAreCheckedBeforeTheyReachADatabase(t *testing.T) {
	for _, good := range []string{"A", "10A", "a.b_c-D", strings.Repeat("x", MaxSKU)} {
		if err := CheckSKU(good); err != nil {
			t.Errorf("CheckSKU(%q): %v", good, err)
		}
	}
	for _, bad := range []string{"", " A", "A ", "a b", "é", "a/b", "a\x00", "😀", "a\n", strings.Repeat("x", MaxSKU+1), "\xff"} {
		if err := CheckSKU(bad); !errors.Is(err, ErrName) {
			t.Errorf("CheckSKU(%q) = %v", bad, err)
		}
	}
	for _, q := range []int64{0, -1, MaxQuantity + 1, math.MinInt64} {
		if CheckQuantity(q) == nil {
			t.Errorf("quantity %d was accepted", q)
		}
	}
}
