package convergo

import "fmt"

// Subject is what a consumer subscribes to: the events of one type of a topic, or all of the topic when Type is empty.
type Subject struct {
	Topic string
	Type  string
}

// String is "topic.type", or "topic.*" for all types.
func (s Subject) String() string {
	if s.Type == "" {
		return s.Topic + ".*"
	}
	return s.Topic + "." + s.Type
}

// Covers tells whether an event of the topic and type belongs to the subject.
func (s Subject) Covers(topic, eventType string) bool {
	return s.Topic == topic && (s.Type == "" || s.Type == eventType)
}

// Validate tells whether the names keep the rules of topics and types; the error wraps ErrInvalid.
func (s Subject) Validate() error {
	if err := validateName(s.Topic); err != nil {
		return fmt.Errorf("subject topic %q: %w", clip(s.Topic), err)
	}
	if s.Type == "" {
		return nil
	}
	if err := validateName(s.Type); err != nil {
		return fmt.Errorf("subject type %q: %w", clip(s.Type), err)
	}
	return nil
}
