package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/convergo/convergo/internal/freeport"
)

// kafkaVersion is that of testserver/install/50-kafka.sh.
const kafkaVersion = "4.1.1"

// Kafka is one node that is broker and controller.
type Kafka struct {
	*Process
	Addr string // "127.0.0.1:port"
	// Listeners are the addresses of the listeners beside that one, by name.
	Listeners map[string]string

	dir  string
	id   string // of the cluster
	java string
	lib  string // the classes' folder
}

// OpenKafka starts a node: topics are not made by themselves, groups rebalance without delay, segments are flushed by every message.
func OpenKafka() (*Kafka, error) { return openKafka(nil, nil) }

// OpenKafkaWith is OpenKafka with more lines of server.properties, which win over the ones before.
func OpenKafkaWith(lines ...string) func() (*Kafka, error) {
	return OpenKafkaListening(nil, lines...)
}

// OpenKafkaListening is OpenKafkaWith that has more listeners: their security protocols ("SSL", "SASL_SSL") by their names.
func OpenKafkaListening(listeners map[string]string, lines ...string) func() (*Kafka, error) {
	return func() (*Kafka, error) { return openKafka(listeners, lines) }
}

func openKafka(listeners map[string]string, lines []string) (*Kafka, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, fmt.Errorf("java: %w", ErrMissing)
	}
	lib, err := Installed("kafka-"+kafkaVersion, "lib")
	if err != nil {
		return nil, err
	}
	var failures []error
	for range 3 { // a port may be taken between the look and the start
		k, err := startKafka(java, lib, listeners, lines)
		if err == nil {
			return k, nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}

func startKafka(java, lib string, listeners map[string]string, lines []string) (*Kafka, error) {
	dir, err := Folder("kafka")
	if err != nil {
		return nil, err
	}
	port, err := freeport.Next()
	if err != nil {
		return nil, err
	}
	controller, err := freeport.Next()
	if err != nil {
		return nil, err
	}
	k := &Kafka{
		Addr: fmt.Sprint("127.0.0.1:", port), Listeners: map[string]string{}, dir: dir, id: clusterID(port, controller), java: java, lib: lib,
	}
	for name := range listeners {
		port, err := freeport.Next()
		if err != nil {
			return nil, err
		}
		k.Listeners[name] = fmt.Sprint("127.0.0.1:", port)
	}
	properties := filepath.Join(dir, "server.properties")
	text := strings.Join(append(k.properties(controller, listeners), lines...), "\n") + "\n"
	if err := os.WriteFile(properties, []byte(text), 0o644); err != nil {
		return nil, err
	}
	if err := k.format(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	classes := filepath.Join(lib, "*")
	k.Process, err = start(dir, "kafka", Command{Path: java, Args: []string{
		"-Xms192m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Xshare:auto", "-XX:SharedArchiveFile=" + filepath.Join(filepath.Dir(lib), "classes.jsa"), // if it is there and fits
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classes, "kafka.Kafka", properties,
	}})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := k.Ready(); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// format makes an empty data folder.
func (k *Kafka) format() error {
	format := exec.Command(k.java, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(k.lib, "*"), "kafka.tools.StorageTool",
		"format", "-t", k.id, "-c", filepath.Join(k.dir, "server.properties"), "--ignore-formatted")
	format.Dir = k.dir
	if output, err := format.CombinedOutput(); err != nil {
		return fmt.Errorf("kafka: format: %w\n%s", err, output)
	}
	return nil
}

// clusterID is 22 characters of base64, as the server asks for; another one for each server, so that it can be told by it.
func clusterID(port, controller int) string {
	return fmt.Sprintf("convergo%05d%05dtest", port, controller)[:21] + "A"
}

func (k *Kafka) properties(controller int, listeners map[string]string) []string {
	reached, protocols := "PLAINTEXT://"+k.Addr, "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
	for name, protocol := range listeners {
		reached += fmt.Sprintf(",%s://%s", name, k.Listeners[name])
		protocols += fmt.Sprintf(",%s:%s", name, protocol)
	}
	return []string{
		"process.roles=broker,controller", "node.id=1",
		fmt.Sprintf("controller.quorum.voters=1@127.0.0.1:%d", controller),
		fmt.Sprintf("listeners=%s,CONTROLLER://127.0.0.1:%d", reached, controller), "advertised.listeners=" + reached,
		"controller.listener.names=CONTROLLER", "listener.security.protocol.map=" + protocols,
		"log.dirs=" + filepath.Join(k.dir, "data"),
		"offsets.topic.replication.factor=1", "offsets.topic.num.partitions=4", "transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1", "transaction.state.log.num.partitions=1", "share.coordinator.state.topic.replication.factor=1",
		"share.coordinator.state.topic.min.isr=1", "share.coordinator.state.topic.num.partitions=1",
		"min.insync.replicas=1", "auto.create.topics.enable=false", "group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=1000",
		"log.flush.interval.messages=1", "controlled.shutdown.enable=false", "num.io.threads=2", "num.network.threads=2",
		"log.cleaner.dedupe.buffer.size=2097152",
		// A node that was killed registers again when its last session is over.
		"broker.session.timeout.ms=2000", "broker.heartbeat.interval.ms=300",
	}
}

// Ready waits until the server answers, is the one that was started here, and has a group coordinator.
func (k *Kafka) Ready() error {
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Addr), kgo.RetryTimeout(time.Second), kgo.RequestTimeoutOverhead(2*time.Second))
	if err != nil {
		return err
	}
	defer client.Close()
	return k.Await(2*time.Minute, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		answer, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, client)
		if err != nil {
			return err
		}
		if answer.ClusterID == nil || *answer.ClusterID != k.id {
			return fmt.Errorf("%s is another server", k.Addr)
		}
		if len(answer.Brokers) != 1 {
			return fmt.Errorf("%d brokers are registered", len(answer.Brokers))
		}
		return nil
	})
}

// Restart starts the server again after it was stopped or killed, on the same data and ports.
func (k *Kafka) Restart() error {
	if err := k.Start(); err != nil {
		return err
	}
	return k.Ready()
}

// Close ends the server and removes its data.
func (k *Kafka) Close() error {
	return errors.Join(k.Stop(syscall.SIGTERM, 10*time.Second), os.RemoveAll(k.dir))
}
