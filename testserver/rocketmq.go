package testserver

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/convergo/convergo/internal/freeport"
)

// rocketmqFolder is where testserver/install/60-rocketmq.sh puts the jars.
const rocketmqFolder = "rocketmq-5.3.3"

// RocketMQ is a name server and one broker, a master without slaves that flushes to disk before it confirms (SYNC_FLUSH).
// Kill, Stop and Start are the broker's; the name server lives on.
type RocketMQ struct {
	// Process is the broker.
	*Process
	// NameServer is the name server's address.
	NameServer string
	// Cluster is the name of the broker's cluster.
	Cluster string
	// LockTerm is how long the broker keeps the lock of a queue that its holder no longer renews.
	LockTerm time.Duration

	names   *Process
	broker  string // its name, which no other broker has
	address string
	dir     string
	plain   bool // answers without TLS and without a signature
}

// RocketMQOptions says what is not as OpenRocketMQ has it.
type RocketMQOptions struct {
	Settings []string // lines for the broker's configuration
	Java     []string // arguments for both virtual machines
	// Closed: the servers answer nobody who does not speak TLS or does not sign. They are taken as ready when the broker says
	// that it is, and cannot be started again.
	Closed bool
}

// OpenRocketMQ starts a name server and a broker.
func OpenRocketMQ() (*RocketMQ, error) { return OpenRocketMQWith(RocketMQOptions{}) }

// OpenRocketMQWith starts a name server and a broker with settings of a test's own.
func OpenRocketMQWith(options RocketMQOptions) (*RocketMQ, error) {
	lib, err := Installed(rocketmqFolder, "lib")
	if err != nil {
		return nil, err
	}
	dir, err := Folder("rmq")
	if err != nil {
		return nil, err
	}
	r := &RocketMQ{Cluster: "DefaultCluster", LockTerm: 4 * time.Second, dir: dir, broker: filepath.Base(dir), plain: !options.Closed}
	if err := r.open(lib, options); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *RocketMQ) open(lib string, options RocketMQOptions) error {
	names, err := freeport.Next()
	if err != nil {
		return err
	}
	port, err := brokerPort()
	if err != nil {
		return err
	}
	replication, err := freeport.Next()
	if err != nil {
		return err
	}
	r.NameServer, r.address = fmt.Sprintf("127.0.0.1:%d", names), fmt.Sprintf("127.0.0.1:%d", port)
	store := filepath.Join(r.dir, "store")
	err = errors.Join(
		writeLines(filepath.Join(r.dir, "namesrv.properties"), fmt.Sprint("listenPort=", names)),
		writeLines(filepath.Join(r.dir, "broker.conf"), append([]string{
			"brokerClusterName=" + r.Cluster, "brokerName=" + r.broker, "brokerId=0", "brokerIP1=127.0.0.1",
			fmt.Sprint("listenPort=", port), fmt.Sprint("haListenPort=", replication), "namesrvAddr=" + r.NameServer,
			"storePathRootDir=" + store, "storePathCommitLog=" + filepath.Join(store, "commitlog"),
			"mappedFileSizeCommitLog=104857600", "mappedFileSizeConsumeQueue=600000", "maxIndexNum=400000", "maxHashSlotNum=100000",
			"diskMaxUsedSpaceRatio=95",
			"flushDiskType=SYNC_FLUSH", "brokerRole=ASYNC_MASTER", "autoCreateTopicEnable=false",
			"transactionTimeOut=1000", "transactionCheckInterval=1000", "transactionCheckMax=1000", "transactionOpBatchInterval=300",
			// A machine that runs many tests is slow, which is no reason to turn messages away.
			"waitTimeMillsInSendQueue=10000", "waitTimeMillsInTransactionQueue=10000",
		}, options.Settings...)...),
	)
	if err != nil {
		return err
	}
	java := func(heap, logs string) []string {
		return append([]string{
			"-Xms" + heap, "-Xmx" + heap, "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=512m", "-XX:TieredStopAtLevel=1",
			"--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens", "java.base/java.nio=ALL-UNNAMED",
			"-Drocketmq.home.dir=" + r.dir, "-Duser.home=" + r.dir, "-Drmq.logback.configurationFile=" + logs,
			fmt.Sprint("-Drocketmq.broker.rebalance.lockMaxLiveTime=", r.LockTerm.Milliseconds()),
			"-Drocketmq.broker.diskSpaceWarningLevelRatio=0.98", "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.97",
		}, append(options.Java, "-cp", filepath.Join(lib, "*"))...)
	}
	r.names, err = start(r.dir, "namesrv", Command{Path: "java", Args: append(java("128m", "rmq.namesrv.logback.xml"),
		"org.apache.rocketmq.namesrv.NamesrvStartup", "-c", filepath.Join(r.dir, "namesrv.properties"))})
	if err != nil {
		return err
	}
	r.Process, err = start(r.dir, "broker", Command{Path: "java", Args: append(java("400m", "rmq.broker.logback.xml"),
		"org.apache.rocketmq.broker.BrokerStartup", "-c", filepath.Join(r.dir, "broker.conf"))})
	if err != nil {
		return err
	}
	return r.await()
}

// brokerPort is a free port whose second lower neighbor is free too: the broker listens there as well.
func brokerPort() (int, error) {
	for given := make(map[int]bool); ; {
		port, err := freeport.Next()
		if err != nil || given[port-2] {
			return port, err
		}
		given[port] = true
	}
}

func writeLines(path string, lines ...string) error {
	return os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}

// await waits until the name server knows the broker, and the broker answers under its own name.
func (r *RocketMQ) await() error {
	if !r.plain {
		return r.Await(time.Minute, func() error {
			if !strings.Contains(r.Tail(), "boot success") {
				return errors.New("it has not said that it is up")
			}
			return nil
		})
	}
	return r.Await(time.Minute, func() error {
		route, err := r.ask(r.NameServer, 105, map[string]string{"topic": r.Cluster})
		if err != nil {
			return err
		}
		if !strings.Contains(string(route), `"`+r.broker+`"`) {
			return errors.New("the name server does not know the broker")
		}
		settings, err := r.ask(r.address, 26, nil)
		if err != nil {
			return err
		}
		if !strings.Contains(string(settings), "brokerName="+r.broker+"\n") {
			return errors.New("another broker answers on the port")
		}
		return nil
	})
}

// Start starts the broker again and waits until it answers.
func (r *RocketMQ) Start() error {
	if err := r.Process.Start(); err != nil {
		return err
	}
	return r.await()
}

// Restart stops the broker as an administrator does, and starts it on the same data.
func (r *RocketMQ) Restart() error {
	return errors.Join(r.Stop(syscall.SIGTERM, 30*time.Second), r.Start())
}

// Close ends both servers and removes their folder.
func (r *RocketMQ) Close() error {
	var failures []error
	for _, p := range []*Process{r.Process, r.names} {
		if p != nil {
			failures = append(failures, p.Kill())
		}
	}
	return errors.Join(append(failures, os.RemoveAll(r.dir))...)
}

// Topics are the names of all topics, sorted, as the name server knows them.
func (r *RocketMQ) Topics() ([]string, error) {
	const allTopics = 206
	body, err := r.ask(r.NameServer, allTopics, nil)
	if err != nil {
		return nil, fmt.Errorf("topics of RocketMQ: %w", err)
	}
	var answer struct{ TopicList []string }
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("topics of RocketMQ: %w", err)
	}
	slices.Sort(answer.TopicList)
	return answer.TopicList, nil
}

// ask sends one command of RocketMQ's protocol and returns the body of the answer.
func (r *RocketMQ) ask(address string, code int, fields map[string]string) ([]byte, error) {
	conn, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // what counts is known by then
	if err := conn.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return nil, err
	}
	header, err := json.Marshal(map[string]any{"code": code, "language": "OTHER", "version": 0, "opaque": 1, "flag": 0, "extFields": fields})
	if err != nil {
		return nil, err
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(4+len(header)))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(header)))
	if _, err := conn.Write(append(frame, header...)); err != nil {
		return nil, err
	}
	var sizes [8]byte
	if _, err := io.ReadFull(conn, sizes[:]); err != nil {
		return nil, err
	}
	rest, length := binary.BigEndian.Uint32(sizes[:4]), binary.BigEndian.Uint32(sizes[4:])&0xffffff
	if rest < 4+length || rest > 64<<20 {
		return nil, errors.New("what answers does not speak RocketMQ's protocol")
	}
	answer := make([]byte, rest-4)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return nil, err
	}
	var said struct {
		Code   int
		Remark string
	}
	if err := json.Unmarshal(answer[:length], &said); err != nil {
		return nil, err
	}
	if said.Code != 0 {
		return nil, fmt.Errorf("answer %d: %s", said.Code, said.Remark)
	}
	return answer[length:], nil
}
