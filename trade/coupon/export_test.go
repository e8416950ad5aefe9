package coupon

import "github.com/convergo/convergo/machine"

// Machine is the uses' state machine, for tests.
func (s *Service) Machine() machine.Machine { return s.uses }
