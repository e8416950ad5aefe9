// Package channel speaks to the payment channel: it signs and verifies what travels between us and it, in both
// directions, and makes our calls. Signatures are those of Standard Webhooks 1.0 (symmetric, v1), whose text is at
// https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md.
//
// It is no service: it knows no table and no event. The payment service and the simulated channel both use it.
package channel
