package nats_test

import (
	"testing"

	"github.com/convergo/convergo/broker/brokertest"
	"github.com/convergo/convergo/testserver"
)

// Each node is killed once, and so for certain the one that leads the stream, the bucket and the readers.
func TestTheDeathOfOneServerOfThreeLosesNothingAndDeliveryGoesOn(t *testing.T) {
	t.Parallel()
	server := testserver.Own(t, testserver.OpenNATSCluster)
	for _, n := range server.Nodes {
		t.Run(n.URL[len("nats://convergo:secret@"):], func(t *testing.T) {
			b := backend(t, server, 0)
			b.Kill = func(t *testing.T) {
				if err := n.Kill(); err != nil {
					t.Fatal(err)
				}
			}
			brokertest.RunOne(t, "NothingConfirmedIsLostWhenTheServerIsKilledWhilePublishing", b)
			if err := n.Start(); err != nil {
				t.Fatal(err)
			}
			if err := server.Ready(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
