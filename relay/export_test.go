package relay

// WithBudget gives the portion another budget.
func (p *Portion) WithBudget(bytes int64) *Portion {
	p.budget = bytes
	return p
}
