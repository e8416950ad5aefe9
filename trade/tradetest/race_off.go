//go:build !race

package tradetest

// raced tells that the race detector is on.
const raced = false
