//go:build !race

package storetest

// many is how many waiting events of one aggregate the laws pile up.
const many = 50_000
