package trade

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// Problem is the body of every error answer (RFC 9457, application/problem+json). It is an error for huma.
type Problem struct {
	Type   string              `json:"type"` // "about:blank": the status says what kind it is
	Title  string              `json:"title"`
	Status int                 `json:"status"`
	Detail string              `json:"detail"`
	Field  string              `json:"field,omitempty"`  // what is wrong, for example "body.lines[3].quantity"
	Remedy string              `json:"remedy,omitempty"` // what to do
	Errors []*huma.ErrorDetail `json:"errors,omitempty"` // all findings, when there are several
}

// NewProblem is an error answer. field and remedy may be empty.
func NewProblem(status int, field, detail, remedy string) *Problem {
	return &Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail, Field: field, Remedy: remedy}
}

// Invalid is 422: the field's value cannot be accepted.
func Invalid(field, detail, remedy string) error {
	return NewProblem(http.StatusUnprocessableEntity, field, detail, remedy)
}

// NotFound is 404: there is no such thing, or it is not the caller's.
func NotFound(field, detail string) error {
	return NewProblem(http.StatusNotFound, field, detail, "check the id and whose it is")
}

// Conflict is 409: the thing's state does not allow it.
func Conflict(field, detail, remedy string) error {
	return NewProblem(http.StatusConflict, field, detail, remedy)
}

// Error is the detail.
func (p *Problem) Error() string { return p.Detail }

// GetStatus is the HTTP status, for huma.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType is application/problem+json, for huma.
func (p *Problem) ContentType(string) string { return problemType }

const problemType = "application/problem+json"

// WriteProblem writes p where there is no huma.
func WriteProblem(w http.ResponseWriter, p *Problem) {
	w.Header().Set("Content-Type", problemType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // a client that is gone cannot be told
}

// ScopeOf is the scope of a request's Idempotency-Key: who, method and path. One user's key is nothing to another
// user's, nor to another endpoint's. Empty for nobody.
func ScopeOf(r *http.Request) string {
	p, ok := PrincipalOf(r.Context())
	if !ok {
		return ""
	}
	return p.String() + " " + r.Method + " " + r.URL.Path
}

// MaxBody is the largest request body, in bytes: 2,000 order lines with room to spare.
const MaxBody = 1 << 20

// APIConfig is the configuration that the services' APIs share: one OpenAPI document, strict JSON, problems as errors.
// log gets the causes of 500s, which a client is not told; nil discards them.
func APIConfig(version string, log *slog.Logger) huma.Config {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	format := huma.Format{Marshal: writeJSON, Unmarshal: ReadJSON}
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Convergo order platform", Version: version,
				Description: "Send 'Authorization: Bearer TOKEN' with the operator key or a session from POST /users/{id}/sessions. " +
					"Amounts are integers in minor units of the currency. Every POST needs an Idempotency-Key header. " +
					"Errors are application/problem+json with the field and the remedy.",
			},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", newSchemaNamer()),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"bearer": {Type: "http", Scheme: "bearer", Description: "the operator key, or a session from POST /users/{id}/sessions"},
				},
			},
			Security:       []map[string][]string{{"bearer": {}}},
			OnAddOperation: []huma.AddOpFunc{documentProblems, documentKey},
		},
		Formats:                      map[string]huma.Format{"application/json": format, "json": format},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
		Transformers:                 []huma.Transformer{problemTransformer(log)},
	}
}

// documentProblems has the OpenAPI document name the errors that an operation can answer with, and describe them as what they
// are: Problems. What only some operations answer is in their Errors.
func documentProblems(api *huma.OpenAPI, op *huma.Operation) {
	problem := func() map[string]*huma.MediaType {
		schema := api.Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "Problem")
		return map[string]*huma.MediaType{problemType: {Schema: schema}}
	}
	delete(op.Responses, "default")
	for _, status := range possibleErrors(op) {
		if key := strconv.Itoa(status); op.Responses[key] == nil {
			op.Responses[key] = &huma.Response{}
		}
	}
	for key, response := range op.Responses {
		status, _ := strconv.Atoi(key)
		if status < http.StatusBadRequest {
			continue
		}
		response.Content = problem()
		if response.Description == "" || response.Description == http.StatusText(status) {
			response.Description = errorMeaning(status)
		}
	}
}

// possibleErrors are those that the platform itself answers with in front of every operation of the kind.
func possibleErrors(op *huma.Operation) []int {
	errs := []int{http.StatusUnprocessableEntity, http.StatusTooManyRequests, http.StatusInternalServerError}
	signedIn := op.Security == nil || len(op.Security) > 0
	if signedIn {
		errs = append(errs, http.StatusUnauthorized, http.StatusForbidden)
	}
	if strings.Contains(op.Path, "{") {
		errs = append(errs, http.StatusNotFound)
	}
	if op.Method == http.MethodPost {
		errs = append(errs, http.StatusBadRequest, http.StatusRequestEntityTooLarge)
		if signedIn { // has an Idempotency-Key
			errs = append(errs, http.StatusConflict)
		}
	}
	return errs
}

func errorMeaning(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "The request cannot be read, or its Idempotency-Key is missing or malformed."
	case http.StatusUnauthorized:
		return "No valid authentication came with it."
	case http.StatusForbidden:
		return "It is not the caller's to do."
	case http.StatusNotFound:
		return "There is no such thing, or it is not the caller's."
	case http.StatusConflict:
		return "The thing's state does not allow it, or a request with the same Idempotency-Key is running: then wait and repeat it unchanged."
	case http.StatusGone:
		return "It has expired."
	case http.StatusRequestEntityTooLarge:
		return "The body is too long."
	case http.StatusUnprocessableEntity:
		return "A value cannot be accepted (see field and errors), or the Idempotency-Key belongs to other content."
	case http.StatusTooManyRequests:
		return "Too many requests: wait as Retry-After says."
	case http.StatusInternalServerError:
		return "Something went wrong on our side and nothing was changed; the same Idempotency-Key may be used again."
	}
	return http.StatusText(status)
}

// documentKey has the OpenAPI document say that POSTs need an Idempotency-Key, also where the handler does not look at it.
// Operations that authenticate themselves, and are documented with no security, have rules of their own for repeats.
func documentKey(_ *huma.OpenAPI, op *huma.Operation) {
	const header = "Idempotency-Key"
	if op.Method != http.MethodPost || (op.Security != nil && len(op.Security) == 0) {
		return
	}
	for _, p := range op.Parameters {
		if p.In == "header" && p.Name == header {
			p.Required = true
			return
		}
	}
	op.Parameters = append(op.Parameters, &huma.Param{
		Name: header, In: "header", Required: true, Description: "1 to 255 bytes, your choice", Schema: &huma.Schema{Type: huma.TypeString},
	})
}

// NewAPI is a service's API on its own mux; what it registers also goes into the OpenAPI document that cfg shares. The mux
// serves no documents itself.
func NewAPI(mux *http.ServeMux, cfg huma.Config) huma.API {
	cfg.OpenAPIPath, cfg.DocsPath, cfg.SchemasPath = "", "", ""
	return humago.New(mux, cfg)
}

// newSchemaNamer keeps types of the same name in different packages apart: "OrderLine" is order.Line. A type without a
// name of its own has that of its parent, and a number when another one has it already.
func newSchemaNamer() func(t reflect.Type, hint string) string {
	given, taken := map[reflect.Type]string{}, map[string]bool{}
	return func(t reflect.Type, hint string) string {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if name, ok := given[t]; ok {
			return name
		}
		name := huma.DefaultSchemaNamer(t, hint)
		pkg := path.Base(t.PkgPath())
		foreign := t.Name() != "" && pkg != "." && pkg != "trade" && pkg != "v2"
		if foreign && !strings.HasPrefix(strings.ToLower(name), pkg) {
			name = strings.ToUpper(pkg[:1]) + pkg[1:] + name
		}
		unique := name
		for i := 2; taken[unique]; i++ {
			unique = name + strconv.Itoa(i)
		}
		given[t], taken[unique] = unique, true
		return unique
	}
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// remedyOf is what helps against an error answer of huma's.
func remedyOf(status int) string {
	if status == http.StatusUnsupportedMediaType {
		return "send 'Content-Type: application/json'"
	}
	return "see the operation in /openapi.json"
}

// problemTransformer turns huma's own error answers into Problems.
func problemTransformer(log *slog.Logger) huma.Transformer {
	return func(ctx huma.Context, _ string, v any) (any, error) {
		m, ok := v.(*huma.ErrorModel)
		if !ok {
			return v, nil
		}
		if m.Status >= http.StatusInternalServerError {
			log.Error("request failed", "method", ctx.Method(), "path", ctx.Operation().Path, "errors", details(m.Errors))
			return NewProblem(m.Status, "", "something went wrong on our side; nothing was changed",
				"try again with the same Idempotency-Key"), nil
		}
		p := NewProblem(m.Status, "", m.Detail, remedyOf(m.Status))
		for i, e := range m.Errors {
			if e == nil {
				continue
			}
			field, message := located(e)
			if i == 0 {
				p.Field, p.Detail = field, message
			}
			p.Errors = append(p.Errors, &huma.ErrorDetail{Message: message, Location: field, Value: shortValue(e.Value)})
			if len(p.Errors) == mostErrors {
				break
			}
		}
		if len(p.Errors) == 1 {
			p.Errors = nil
		}
		return p, nil
	}
}

const mostErrors = 20 // findings in one answer

func details(errs []*huma.ErrorDetail) string {
	texts := make([]string, 0, len(errs))
	for _, e := range errs {
		if e != nil {
			texts = append(texts, e.Message)
		}
	}
	return strings.Join(texts, "; ")
}

// located is the field and the message of a finding. ReadJSON starts its message with the field when it knows better than
// "body".
func located(e *huma.ErrorDetail) (field, message string) {
	if rest, ok := strings.CutPrefix(e.Message, jsonErrorPrefix); ok {
		if f, m, found := strings.Cut(rest, ": "); found {
			return f, m
		}
	}
	return e.Location, e.Message
}

// shortValue echoes short scalars only: a body may be large, and not even text.
func shortValue(v any) any {
	switch v := v.(type) {
	case string:
		if len(v) <= 80 {
			return shorten(v)
		}
	case nil, []byte, []any, map[string]any, map[any]any:
		return nil
	}
	return v // a number or a truth value
}

var _ error = (*Problem)(nil)

// problemf is a 400 about a field of the body, in the form that located takes apart.
func problemf(field, format string, args ...any) error {
	return fmt.Errorf("%s%s: %s", jsonErrorPrefix, field, fmt.Sprintf(format, args...))
}

const jsonErrorPrefix = "JSON "
