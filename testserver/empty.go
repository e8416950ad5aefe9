package testserver

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Empty stops every node, takes away all that they have stored, and starts them.
func (s *NATS) Empty() error {
	var failures []error
	for _, n := range s.Nodes {
		failures = append(failures, n.Stop(syscall.SIGTERM, time.Minute))
	}
	for _, n := range s.Nodes {
		failures = append(failures, os.RemoveAll(filepath.Join(s.dir, n.name)))
	}
	for _, n := range s.Nodes {
		failures = append(failures, n.Start())
	}
	return errors.Join(append(failures, s.Ready())...)
}

// Empty stops the server, takes away all that it has stored, and starts it.
func (r *Redis) Empty() error {
	err := errors.Join(r.Stop(syscall.SIGTERM, time.Minute), os.RemoveAll(filepath.Join(r.dir, "appendonlydir")))
	return errors.Join(err, r.Restart())
}

// Empty stops the broker, takes away all that it has stored, topics and positions too, and starts it.
func (r *RocketMQ) Empty() error {
	err := errors.Join(r.Stop(syscall.SIGTERM, time.Minute), os.RemoveAll(filepath.Join(r.dir, "store")))
	return errors.Join(err, r.Start())
}

// Empty stops the node, takes away all that it has stored, topics and positions too, and starts it.
func (k *Kafka) Empty() error {
	err := errors.Join(k.Stop(syscall.SIGTERM, time.Minute), os.RemoveAll(filepath.Join(k.dir, "data")))
	return errors.Join(err, k.format(), k.Restart())
}

// Empty stops the node, takes away all that it has stored, and starts it.
func (r *RabbitMQ) Empty() error {
	err := errors.Join(r.Stop(syscall.SIGTERM, time.Minute), os.RemoveAll(filepath.Join(r.dir, "data")))
	return errors.Join(err, r.again())
}
