package trade

import (
	"encoding/json"
	"strings"
	"testing"
)

type payment struct {
	Amount int64  `json:"amount"`
	Note   string `json:"note"`
	Lines  []struct {
		Quantity int64 `json:"quantity"`
	} `json:"lines"`
}

func TestCaseB30DoubledFieldsAreRefusedBeforeUse(t *testing.T) {
	for body, field := range map[string]string{
		`{"amount":10000,"amount":1}`:                            "body.amount",
		`{"amount":10000,"AMOUNT":1}`:                            "body.AMOUNT",
		`{"lines":[{"quantity":1},{"quantity":1,"Quantity":2}]}`: "body.lines[1].Quantity",
		`{"amount":1} {"amount":2}`:                              "body",
		`{"amount":1}x`:                                          "body",
		`{"amount":1,"note":"` + "\xff" + `"}`:                   "body",
		`{"amount":1`:                                            "body",
		`{"amount":}`:                                            "body.amount",
		``:                                                       "body",
		`{"amount":1.5}`:                                         "body.amount",
		`{"amount":"1"}`:                                         "body.amount",
		`{"amount":9223372036854775808}`:                         "body.amount",
		`{"amount":1,"extra":true}`:                              "body",
		strings.Repeat("[", 5000):                                "body",
	} {
		var p payment
		err := ReadJSON([]byte(body), &p)
		if err == nil || !strings.HasPrefix(err.Error(), "JSON "+field) {
			t.Errorf("%.60q: error %v, want one about %s", body, err, field)
		}
		if len(body) == 0 || body[0] == '[' || strings.Contains(body, "1.5") || strings.Contains(body, `"1"`) || strings.Contains(body, "extra") ||
			strings.Contains(body, "808") {
			continue
		}
		var v any // what huma validates is read by the same rules
		if err := ReadJSON([]byte(body), &v); err == nil {
			t.Errorf("%.60q was read into any", body)
		}
	}
}

func TestPlainJSONIsReadAsItIs(t *testing.T) {
	var p payment
	if err := ReadJSON([]byte(" {\"amount\":9007199254740993,\"note\":\"Tom & Jerry <gift> 😀\",\"lines\":[{\"quantity\":1},{\"quantity\":2}]}\n"), &p); err != nil {
		t.Fatal(err)
	}
	if p.Amount != 9007199254740993 || p.Note != "Tom & Jerry <gift> 😀" || len(p.Lines) != 2 {
		t.Errorf("read %+v", p)
	}
}

func FuzzReadJSON(f *testing.F) {
	for _, seed := range []string{`{"a":1}`, `{"a":1,"A":2}`, `[1,{"b":[]}]`, `"x"`, `{"a":{"a":{"a":null}}}`, "{", `{"":1,"":2}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var v any
		if ReadJSON(data, &v) != nil {
			return
		}
		if !json.Valid(data) {
			t.Fatalf("%q was read but is not JSON", data)
		}
	})
}
