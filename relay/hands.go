package relay

// hands are goroutines that work one thing after another. A goroutine per batch would be as right, but each would begin with
// a small stack, and grow it again on its way down into a database or a broker.
type hands struct {
	free chan func()   // work goes to one who waits, if anybody does
	quit chan struct{} // closed when there will be no more work
}

func newHands() *hands { return &hands{free: make(chan func()), quit: make(chan struct{})} }

// do has work done beside the caller, at once.
func (h *hands) do(work func()) {
	select {
	case h.free <- work:
	default:
		go h.serve(work)
	}
}

func (h *hands) serve(work func()) {
	for {
		work()
		select {
		case work = <-h.free:
		case <-h.quit:
			return
		}
	}
}
