package protocol

import (
	"encoding/json"
	"strconv"
)

// HTTP requests that the server sends for the client (PROTOCOL.md, "HTTP
// requests").
const (
	MethodHTTPRequest = "http/request"
	MethodHTTPCancel  = "http/request/cancel" // notification

	NotificationHTTPBodyDelta = "http/request/bodyDelta"
)

// HTTPRequest are the params of http/request.
type HTTPRequest struct {
	Method         string         `json:"method"`
	URL            string         `json:"url"`
	Headers        []HTTPHeader   `json:"headers,omitempty" wire:"absent="` // in this order
	Body           []byte         `json:"bodyBase64,omitempty" wire:"optional"`
	TimeoutMs      *uint64        `json:"timeoutMs,omitempty"` // for the whole exchange; nil means none
	RedirectPolicy RedirectPolicy `json:"redirectPolicy" wire:"absent=follow"`
	RequestID      string         `json:"requestId" wire:"identifier"` // of the stream
	StreamResponse bool           `json:"streamResponse" wire:"absent=false"`
}

// RedirectPolicy says whether the server follows redirects.
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
	Name        string  `json:"name"`
	Value       string  `json:"value"`
	ValueEnvVar *string `json:"valueEnvVar,omitempty"`
}

// HTTPResponse is the answer to http/request. Body is empty when it is streamed.
type HTTPResponse struct {
	Status  int          `json:"status"`
	Headers []HTTPHeader `json:"headers"` // names in lower case
	Body    []byte       `json:"bodyBase64"`
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

// HTTPBodyDelta are the params of http/request/bodyDelta: a piece of a streamed body. The
// last one is Done, and has an Error if the body is incomplete.
type HTTPBodyDelta struct {
	RequestID string  `json:"requestId"`
	Seq       uint64  `json:"seq"` // from 1, without gaps
	Data      []byte  `json:"deltaBase64"`
	Done      bool    `json:"done"`
	Error     *string `json:"error"`
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
