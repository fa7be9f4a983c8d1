package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Connections that the server makes for the client (EXTENSIONS.md, "tcpOpen").
const (
	MethodTCPOpen = "tcp/open"

	// Notifications in both directions.
	NotificationTCPData   = "tcp/data"
	NotificationTCPCredit = "tcp/credit"
	NotificationTCPEnd    = "tcp/end"
	NotificationTCPReset  = "tcp/reset"
)

// MaxTCPCredit bounds the credit of a stream.
const MaxTCPCredit = 1 << 30

// TCPOpenParams are the params of tcp/open: either Host and Port, or Path.
type TCPOpenParams struct {
	StreamID string    `json:"streamId" wire:"identifier"`       // chosen by the client
	Host     *string   `json:"host,omitempty" wire:"identifier"` // a name or an address
	Port     *uint16   `json:"port,omitempty"`                   // of Host
	Path     *Path     `json:"path,omitempty"`                   // a unix socket, instead of Host and Port
	Credit   TCPCredit `json:"credit"`                           // the bytes that the server may send
}

func (p *TCPOpenParams) check() error {
	switch {
	case (p.Path == nil) == (p.Host == nil), (p.Host == nil) != (p.Port == nil):
		return errors.New("give either `host` and `port` or `path`")
	case p.Host != nil && *p.Host == "":
		return errors.New("`host` must not be empty")
	}
	return nil
}

// TCPOpenResult is the answer to tcp/open.
type TCPOpenResult struct {
	Credit TCPCredit `json:"credit"` // the bytes that the client may send
}

// TCPCredit is a number of bytes that one side allows the other to send.
type TCPCredit uint64

func (c *TCPCredit) decode(raw json.RawMessage) error {
	n, err := decodeUnsigned(raw)
	if err == nil && n > MaxTCPCredit {
		err = fmt.Errorf("the credit is %d bytes, the limit is %d", n, MaxTCPCredit)
	}
	*c = TCPCredit(n)
	return err
}

// TCPData are the params of tcp/data. DecodeParams copies Chunk.
type TCPData struct {
	StreamID string `json:"streamId" wire:"identifier"`
	Chunk    []byte `json:"chunk" wire:"bulk"`
}

func (d *TCPData) join(data []byte) { d.Chunk = data }

// TCPMoreCredit are the params of tcp/credit: the sender accepts Bytes more bytes.
type TCPMoreCredit struct {
	StreamID string    `json:"streamId" wire:"identifier"`
	Bytes    TCPCredit `json:"bytes"` // how many more bytes the other side may send
}

// TCPEnd are the params of tcp/end: the sender sends no more data.
type TCPEnd struct {
	StreamID string `json:"streamId" wire:"identifier"`
}

// TCPReset are the params of tcp/reset: the sender has forgotten the stream.
type TCPReset struct {
	StreamID string `json:"streamId" wire:"identifier"`
	Message  string `json:"message" wire:"absent="` // why
}

// AppendTCPData appends the notification tcp/data.
func AppendTCPData(b []byte, d TCPData) []byte {
	b = appendTCPDataHead(b, d.StreamID)
	b = append(b, `,"chunk":"`...)
	b = AppendBase64(b, d.Chunk)
	return append(b, `"}}`...)
}

// AppendBinaryTCPData appends the notification tcp/data as a binary message.
func AppendBinaryTCPData(b []byte, d TCPData) []byte {
	var space [128]byte
	head := appendTCPDataHead(space[:0], d.StreamID)
	return AppendBinary(b, append(head, `}}`...), d.Chunk)
}

func appendTCPDataHead(b []byte, streamID string) []byte {
	b = append(b, `{"method":"tcp/data","params":{"streamId":`...)
	return appendString(b, streamID)
}

// AppendTCPCredit appends the notification tcp/credit.
func AppendTCPCredit(b []byte, c TCPMoreCredit) []byte {
	b = append(b, `{"method":"tcp/credit","params":{"streamId":`...)
	b = appendString(b, c.StreamID)
	b = append(b, `,"bytes":`...)
	b = strconv.AppendUint(b, uint64(c.Bytes), 10)
	return append(b, `}}`...)
}

// AppendTCPEnd appends the notification tcp/end.
func AppendTCPEnd(b []byte, e TCPEnd) []byte { return appendSmall(b, NotificationTCPEnd, e) }

// AppendTCPReset appends the notification tcp/reset.
func AppendTCPReset(b []byte, r TCPReset) []byte { return appendSmall(b, NotificationTCPReset, r) }

// HTTP requests that the server sends for the client (PROTOCOL.md, "HTTP requests").
const (
	MethodHTTPRequest = "http/request"
	MethodHTTPCancel  = "http/request/cancel" // notification

	NotificationHTTPBodyDelta = "http/request/bodyDelta"
)

// HTTPRequest are the params of http/request.
type HTTPRequest struct {
	Method         string         `json:"method"`                               // any token, sent as it is
	URL            string         `json:"url"`                                  // absolute, http or https
	Headers        []HTTPHeader   `json:"headers,omitempty" wire:"absent="`     // the lines of the header, in this order
	Body           []byte         `json:"bodyBase64,omitempty" wire:"optional"` // the body; empty is the same as null
	TimeoutMs      *uint64        `json:"timeoutMs,omitempty"`                  // for the whole exchange; nil means none
	RedirectPolicy RedirectPolicy `json:"redirectPolicy" wire:"absent=follow"`  // whether to follow redirects
	RequestID      string         `json:"requestId" wire:"identifier"`          // the name of the stream of the response, chosen by the client
	StreamResponse bool           `json:"streamResponse" wire:"absent=false"`   // send the body as notifications
}

// RedirectPolicy selects whether the server follows redirects.
type RedirectPolicy string

// The values of RedirectPolicy.
const (
	RedirectFollow RedirectPolicy = "follow"
	RedirectStop   RedirectPolicy = "stop"
)

func (p *RedirectPolicy) decode(raw json.RawMessage) error {
	s, err := decodeString(raw)
	if err != nil {
		return err
	}
	*p = RedirectPolicy(s)
	return oneOf(s, string(RedirectFollow), string(RedirectStop))
}

// HTTPHeader is one line of a header. ValueEnvVar, in requests only, names a variable of
// the server's environment whose value follows Value.
type HTTPHeader struct {
	Name        string  `json:"name"`                  // the name of the header field
	Value       string  `json:"value"`                 // its value
	ValueEnvVar *string `json:"valueEnvVar,omitempty"` // in requests: a variable of the server's environment whose value follows Value
}

// HTTPResponse is the answer to http/request. Body is empty when it is streamed.
type HTTPResponse struct {
	Status  int          `json:"status"`     // such as 200
	Headers []HTTPHeader `json:"headers"`    // the lines of the header, with names in lower case
	Body    []byte       `json:"bodyBase64"` // the body; empty if it is streamed
}

// EncodedLen returns the approximate size of the answer on the wire in bytes.
func (r *HTTPResponse) EncodedLen() int {
	n := 64 + Base64Len(len(r.Body))
	for _, h := range r.Headers {
		n += len(h.Name) + len(h.Value) + 24
	}
	return n
}

// AppendJSON implements Appender.
func (r *HTTPResponse) AppendJSON(b []byte) []byte {
	b = append(b, `{"status":`...)
	b = strconv.AppendInt(b, int64(r.Status), 10)
	b = append(b, `,"headers":[`...)
	for i, h := range r.Headers {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"name":`...)
		b = appendString(b, h.Name)
		b = append(b, `,"value":`...)
		b = appendString(b, h.Value)
		b = append(b, '}')
	}
	b = append(b, `],"bodyBase64":"`...)
	b = AppendBase64(b, r.Body)
	return append(b, `"}`...)
}

// HTTPCancelParams are the params of http/request/cancel.
type HTTPCancelParams struct {
	RequestID string `json:"requestId" wire:"identifier"`
}

// HTTPBodyDelta are the params of http/request/bodyDelta: a part of a streamed body. Done is
// set in the last one, and Error as well if the body is incomplete.
type HTTPBodyDelta struct {
	RequestID string  `json:"requestId"`
	Seq       uint64  `json:"seq"`         // counts from 1, without gaps
	Data      []byte  `json:"deltaBase64"` // a piece of the body
	Done      bool    `json:"done"`        // it is the last piece
	Error     *string `json:"error"`       // why the body is incomplete; null if it is not
}

// AppendHTTPBodyDelta appends the notification http/request/bodyDelta.
func AppendHTTPBodyDelta(b []byte, d HTTPBodyDelta) []byte {
	b = append(b, `{"method":"http/request/bodyDelta","params":{"requestId":`...)
	b = appendString(b, d.RequestID)
	b = append(b, `,"seq":`...)
	b = strconv.AppendUint(b, d.Seq, 10)
	b = append(b, `,"deltaBase64":"`...)
	b = AppendBase64(b, d.Data)
	b = append(b, `","done":`...)
	b = strconv.AppendBool(b, d.Done)
	b = append(b, `,"error":`...)
	if d.Error == nil {
		b = append(b, `null`...)
	} else {
		b = appendString(b, *d.Error)
	}
	return append(b, `}}`...)
}
