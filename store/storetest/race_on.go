//go:build race

package storetest

// many is how many waiting events of one aggregate the laws pile up. The race detector makes a database that is compiled
// into the program ten times slower, and the law counts rows, not time.
const many = 4_000
