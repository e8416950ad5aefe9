package main

import (
	"cmp"
	_ "embed"
	"html/template"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

//go:embed docs.html
var docsHTML string

// docsPage serves the API's documentation as one page that needs no script and no other host.
func docsPage(api *huma.OpenAPI) http.Handler {
	page := template.Must(template.New("docs").Parse(docsHTML))
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		_ = page.Execute(w, docsOf(api)) // a reader who went away is no error of ours
	})
}

type docsGroup struct {
	Name       string
	Operations []docsOperation
}

type docsOperation struct {
	ID, Method, Path, Summary, Description string
	Parameters                             []docsField
	Body                                   []docsField
	Answers                                []docsAnswer
}

type docsField struct {
	Name, In, Type, Text string
	Required             bool
}

type docsAnswer struct {
	Status, Text string
	Fields       []docsField
}

func docsOf(api *huma.OpenAPI) map[string]any {
	groups := map[string][]docsOperation{}
	for path, item := range api.Paths {
		for method, op := range map[string]*huma.Operation{"GET": item.Get, "POST": item.Post, "PUT": item.Put, "DELETE": item.Delete, "PATCH": item.Patch} {
			if op == nil || op.Hidden {
				continue
			}
			name := "other"
			if len(op.Tags) > 0 {
				name = op.Tags[0]
			}
			groups[name] = append(groups[name], docsOperationOf(api, method, path, op))
		}
	}
	var sorted []docsGroup
	for name, ops := range groups {
		slices.SortFunc(ops, func(a, b docsOperation) int {
			return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Method, b.Method))
		})
		sorted = append(sorted, docsGroup{name, ops})
	}
	slices.SortFunc(sorted, func(a, b docsGroup) int { return strings.Compare(a.Name, b.Name) })
	return map[string]any{"Title": api.Info.Title, "Version": api.Info.Version, "Text": api.Info.Description, "Groups": sorted}
}

func docsOperationOf(api *huma.OpenAPI, method, path string, op *huma.Operation) docsOperation {
	out := docsOperation{ID: op.OperationID, Method: method, Path: path, Summary: op.Summary, Description: op.Description}
	for _, p := range op.Parameters {
		out.Parameters = append(out.Parameters, docsField{p.Name, p.In, typeOf(api, p.Schema), p.Description, p.Required})
	}
	if op.RequestBody != nil {
		for _, media := range op.RequestBody.Content {
			out.Body = fieldsOf(api, media.Schema)
		}
	}
	for status, answer := range op.Responses {
		a := docsAnswer{Status: status, Text: answer.Description}
		for kind, media := range answer.Content {
			if kind != "application/problem+json" {
				a.Fields = fieldsOf(api, media.Schema)
			}
		}
		out.Answers = append(out.Answers, a)
	}
	slices.SortFunc(out.Answers, func(a, b docsAnswer) int { return strings.Compare(a.Status, b.Status) })
	return out
}

func fieldsOf(api *huma.OpenAPI, s *huma.Schema) []docsField {
	s = resolve(api, s)
	if s == nil {
		return nil
	}
	if s.Type == huma.TypeArray {
		return fieldsOf(api, s.Items)
	}
	var fields []docsField
	for name, p := range s.Properties {
		if name == "$schema" {
			continue
		}
		text := p.Description
		if text == "" {
			if r := resolve(api, p); r != nil {
				text = r.Description
			}
		}
		fields = append(fields, docsField{Name: name, Type: typeOf(api, p), Text: text, Required: slices.Contains(s.Required, name)})
	}
	slices.SortFunc(fields, func(a, b docsField) int { return strings.Compare(a.Name, b.Name) })
	return fields
}

func typeOf(api *huma.OpenAPI, s *huma.Schema) string {
	if s == nil {
		return ""
	}
	if s.Ref != "" {
		return s.Ref[strings.LastIndex(s.Ref, "/")+1:]
	}
	if s.Type == huma.TypeArray {
		return "list of " + typeOf(api, s.Items)
	}
	if s.Format != "" {
		return s.Type + " (" + s.Format + ")"
	}
	return s.Type
}

func resolve(api *huma.OpenAPI, s *huma.Schema) *huma.Schema {
	if s != nil && s.Ref != "" && api.Components != nil && api.Components.Schemas != nil {
		return api.Components.Schemas.SchemaFromRef(s.Ref)
	}
	return s
}
