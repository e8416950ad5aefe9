// Package trade holds the words that the services of the order platform share: money, events, effects, tokens, the shape
// of a service. Services live beside one another below it and never import each other: they meet through events and HTTP.
package trade
