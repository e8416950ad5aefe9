package inventory

import "github.com/convergo/convergo/machine"

// Machine is the orders' state machine, for tests.
func (s *Service) Machine() machine.Machine { return s.orders }
