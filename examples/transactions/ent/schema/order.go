// Package schema is what ent generates its client from.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/dialect/entsql"
	"entgo.io/ent/schema"
	"entgo.io/ent/schema/field"
)

// Order is a business row.
type Order struct{ ent.Schema }

// Fields implements ent.Interface.
func (Order) Fields() []ent.Field {
	return []ent.Field{field.String("no"), field.Int64("total")}
}

// Annotations implements ent.Interface.
func (Order) Annotations() []schema.Annotation {
	return []schema.Annotation{entsql.Annotation{Table: "shop_order"}}
}
