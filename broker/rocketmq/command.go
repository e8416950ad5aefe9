package rocketmq

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
)

// Codes of the requests that are made and answered here. The protocol's own names are in the comments.
const (
	codePull             = 11  // PULL_MESSAGE
	codeQueryOffset      = 14  // QUERY_CONSUMER_OFFSET
	codeUpdateOffset     = 15  // UPDATE_CONSUMER_OFFSET
	codeCreateTopic      = 17  // UPDATE_AND_CREATE_TOPIC
	codeBrokerConfig     = 26  // GET_BROKER_CONFIG
	codeMinOffset        = 31  // GET_MIN_OFFSET
	codeHeartbeat        = 34  // HEART_BEAT
	codeUnregister       = 35  // UNREGISTER_CLIENT
	codeEndTransaction   = 37  // END_TRANSACTION
	codeConsumers        = 38  // GET_CONSUMER_LIST_BY_GROUP
	codeCheckTransaction = 39  // CHECK_TRANSACTION_STATE, from the broker
	codeConsumersChanged = 40  // NOTIFY_CONSUMER_IDS_CHANGED, from the broker
	codeLock             = 41  // LOCK_BATCH_MQ
	codeUnlock           = 42  // UNLOCK_BATCH_MQ
	codeRoute            = 105 // GET_ROUTEINFO_BY_TOPIC
	codeSend             = 310 // SEND_MESSAGE_V2
	codeSendBatch        = 320 // SEND_BATCH_MESSAGE
	codeTopicConfig      = 351 // GET_TOPIC_CONFIG
)

// Codes of answers.
const (
	answerSuccess        = 0
	answerNotAllowed     = 16 // NO_PERMISSION
	answerBusy           = 2
	answerFlushTimeout   = 10
	answerNoSlave        = 11
	answerSlaveTimeout   = 12
	answerIllegalMessage = 13
	answerNoTopic        = 17
	answerNothingNew     = 19
	answerNothingMatched = 20
	answerOffsetMoved    = 21
	answerNotFound       = 22
)

const (
	flagAnswer         = 1
	flagOneWay         = 2
	maxFrame           = 128 << 20 // far above a broker's largest answer
	protocolVersion    = 479       // that of release 5.3.3: answers are in standard JSON, messages in their present form
	headerBytes        = 0xffffff  // the length of a header; the byte above names its form
	binaryForm         = 1 << 24
	fieldAccessKey     = "AccessKey"
	fieldSecurityToken = "SecurityToken"
	fieldSignature     = "Signature"
	headerStandardJSON = "acceptStandardJsonOnly"
)

// command is one frame of the protocol, a request or an answer.
type command struct {
	Code     int               `json:"code"`
	Language string            `json:"language"`
	Version  int               `json:"version"`
	Opaque   int32             `json:"opaque"` // pairs an answer with its request
	Flag     int               `json:"flag"`
	Remark   string            `json:"remark,omitempty"`
	Fields   map[string]string `json:"extFields,omitempty"`
	body     []byte
}

// fields makes the named fields of a request; values are written as text.
func fields(pairs ...any) map[string]string {
	all := make(map[string]string, len(pairs)/2+3)
	for i := 0; i+1 < len(pairs); i += 2 {
		all[fmt.Sprint(pairs[i])] = fmt.Sprint(pairs[i+1])
	}
	return all
}

func request(code int, ext map[string]string, body []byte) *command {
	return &command{Code: code, Language: "OTHER", Version: protocolVersion, Fields: ext, body: body}
}

func (c *command) isAnswer() bool { return c.Flag&flagAnswer != 0 }

// frame is the command as bytes: length of the rest, length of the header, header, body.
func (c *command) frame() ([]byte, error) {
	header, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	if len(header) > headerBytes {
		return nil, fmt.Errorf("header of %d bytes is longer than %d", len(header), headerBytes)
	}
	all := make([]byte, 0, 8+len(header)+len(c.body))
	all = binary.BigEndian.AppendUint32(all, uint32(4+len(header)+len(c.body)))
	all = binary.BigEndian.AppendUint32(all, uint32(len(header)))
	all = append(all, header...)
	return append(all, c.body...), nil
}

// readCommand reads one frame.
func readCommand(r io.Reader) (*command, error) {
	var sizes [8]byte
	if _, err := io.ReadFull(r, sizes[:]); err != nil {
		return nil, err
	}
	rest, mark := binary.BigEndian.Uint32(sizes[:4]), binary.BigEndian.Uint32(sizes[4:])
	length := mark & headerBytes
	if rest < 4+length || rest > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes with a header of %d: what answers does not speak RocketMQ's protocol", rest, length)
	}
	if mark&binaryForm != 0 {
		return nil, fmt.Errorf("a header in the binary form, which was not asked for")
	}
	content := make([]byte, rest-4)
	if _, err := io.ReadFull(r, content); err != nil {
		return nil, err
	}
	c := &command{}
	if err := json.Unmarshal(content[:length], c); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	c.body = content[length:]
	return c, nil
}

// Credentials is an access key of the servers' access control (ACL 1.0 and 2.0). The zero value signs nothing.
type Credentials struct {
	AccessKey     string
	SecretKey     string
	SecurityToken string // only where the servers want one
}

// String keeps the secrets out of logs.
func (c Credentials) String() string { return "access key " + c.AccessKey }

// GoString keeps the secrets out of logs.
func (c Credentials) GoString() string { return c.String() }

// sign adds the signature over the values of all fields, sorted by name, and the body.
func (c Credentials) sign(cmd *command) {
	if c.AccessKey == "" {
		return
	}
	signed := maps.Clone(cmd.Fields)
	if signed == nil {
		signed = map[string]string{}
	}
	delete(signed, fieldSignature)
	signed[fieldAccessKey] = c.AccessKey
	if c.SecurityToken != "" {
		signed[fieldSecurityToken] = c.SecurityToken
	}
	sum := hmac.New(sha1.New, []byte(c.SecretKey))
	for _, name := range slices.Sorted(maps.Keys(signed)) {
		sum.Write([]byte(signed[name]))
	}
	sum.Write(cmd.body)
	signed[fieldSignature] = base64.StdEncoding.EncodeToString(sum.Sum(nil))
	cmd.Fields = signed
}
