package testserver

import "testing"

func TestNATSComesBackAfterAKill(t *testing.T) {
	s := Own(t, OpenNATSCluster)
	n := s.Nodes[0]
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.usable(); err == nil {
		t.Error("a killed server answers")
	}
	if err := s.Ready(); err != nil {
		t.Error("two of three: ", err)
	}
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(); err != nil {
		t.Error(err)
	}
}
