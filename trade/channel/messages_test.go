package channel

import (
	"errors"
	"strings"
	"testing"
)

const goodNotice = `{"type":"payment.succeeded","merchant":"m-1","trade_no":"O-1-1","transaction":"T-1",` +
	`"amount":10000,"currency":"CNY","at":"2026-07-01T12:00:00Z"}`

func TestANoticeIsReadAndMayCarryMoreThanWeKnow(t *testing.T) {
	n, err := ParseNotice([]byte(strings.Replace(goodNotice, `{`, `{"buyer":{"id":"b","tags":[1,{"x":null}]},`, 1)))
	if err != nil || n.Amount != 10000 || n.Transaction != "T-1" || n.TradeNo != "O-1-1" || n.Currency != "CNY" || !n.At.Equal(at) {
		t.Fatalf("%+v, %v", n, err)
	}
}

func TestANoticeThatCouldBeReadInTwoWaysIsMalformed(t *testing.T) {
	replace := func(old, with string) string { return strings.Replace(goodNotice, old, with, 1) }
	for name, body := range map[string]string{
		"amount twice":           replace(`"amount":10000`, `"amount":10000,"amount":1`),
		"AMOUNT beside amount":   replace(`"amount":10000`, `"amount":10000,"AMOUNT":1`),
		"AMOUNT alone":           replace(`"amount"`, `"AMOUNT"`),
		"long s":                 replace(`"transaction"`, `"tran`+"\u017f"+`action"`),
		"twice deep inside":      replace(`{`, `{"x":{"y":[{"a":1,"A":2}]},`),
		"escaped name":           replace(`"amount":10000`, `"amount":10000,"\u0061mount":1`),
		"no amount":              replace(`"amount":10000,`, ``),
		"zero":                   replace(`10000`, `0`),
		"negative":               replace(`10000`, `-1`),
		"fraction":               replace(`10000`, `100.5`),
		"exponent":               replace(`10000`, `1e4`),
		"text amount":            replace(`10000`, `"10000"`),
		"too large":              replace(`10000`, `9223372036854775808`),
		"no merchant":            replace(`"merchant":"m-1",`, ``),
		"no transaction":         replace(`"T-1"`, `""`),
		"blank in trade_no":      replace(`"O-1-1"`, `"O-1-1 "`),
		"lower-case currency":    replace(`"CNY"`, `"cny"`),
		"no type":                replace(`"payment.succeeded"`, `""`),
		"two values":             goodNotice + goodNotice,
		"array":                  `[` + goodNotice + `]`,
		"cut":                    goodNotice[:len(goodNotice)-3],
		"empty":                  ``,
		"null":                   `null`,
		"not UTF-8":              replace(`m-1`, "m-\xff"),
		"nested without an end":  replace(`{`, `{"x":`+strings.Repeat(`[`, 1000)+strings.Repeat(`]`, 1000)+`,`),
		"long transaction":       replace(`T-1`, strings.Repeat("T", 101)),
		"wrong closing brackets": replace(`{`, `{"x":[1},`),
	} {
		if n, err := ParseNotice([]byte(body)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %+v, %v", name, n, err)
		}
	}
}

func FuzzParseNotice(f *testing.F) {
	f.Add([]byte(goodNotice))
	f.Add([]byte(`{"amount":1,"Amount":2}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		n, err := ParseNotice(body)
		if err == nil && (n.Amount <= 0 || n.Merchant == "" || n.TradeNo == "" || n.Transaction == "" || len(n.Currency) != 3) {
			t.Errorf("accepted %+v", n)
		}
	})
}
