package trade_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/convergo/convergo/trade"
)

func TestEveryOperationDocumentsTheErrorsThatItCanAnswerWith(t *testing.T) {
	cfg := trade.APIConfig("test", nil)
	api := trade.NewAPI(http.NewServeMux(), cfg)
	type none struct{}
	type one struct {
		ID string `path:"id"`
	}
	type body struct {
		ID   string `path:"id"`
		Body struct {
			N int64 `json:"n"`
		}
	}
	huma.Register(api, huma.Operation{OperationID: "list", Method: http.MethodGet, Path: "/things"},
		func(context.Context, *none) (*none, error) { return nil, nil })
	huma.Register(api, huma.Operation{OperationID: "get", Method: http.MethodGet, Path: "/things/{id}"},
		func(context.Context, *one) (*none, error) { return nil, nil })
	huma.Register(api, huma.Operation{OperationID: "change", Method: http.MethodPost, Path: "/things/{id}", Errors: []int{http.StatusGone}},
		func(context.Context, *body) (*none, error) { return nil, nil })
	huma.Register(api, huma.Operation{OperationID: "notify", Method: http.MethodPost, Path: "/notices", Security: []map[string][]string{}},
		func(context.Context, *none) (*none, error) { return nil, nil })
	for _, c := range []struct {
		op   *huma.Operation
		want string
	}{
		{cfg.Paths["/things"].Get, "204 401 403 422 429 500"},
		{cfg.Paths["/things/{id}"].Get, "204 401 403 404 422 429 500"},
		{cfg.Paths["/things/{id}"].Post, "204 400 401 403 404 409 410 413 422 429 500"},
		{cfg.Paths["/notices"].Post, "204 400 413 422 429 500"},
	} {
		if got := strings.Join(slices.Sorted(maps.Keys(c.op.Responses)), " "); got != c.want {
			t.Errorf("%s documents %s, want %s", c.op.OperationID, got, c.want)
		}
		for status, response := range c.op.Responses {
			if status >= "4" && (response.Description == "" || response.Content["application/problem+json"] == nil ||
				response.Content["application/problem+json"].Schema.Ref != "#/components/schemas/Problem") {
				t.Errorf("%s %s: %+v", c.op.OperationID, status, response)
			}
		}
	}
}
