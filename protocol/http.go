package protocol

import (
	"encoding/json"
	"fmt"
	"strconv"

	"execserver/internal/base64"
)

// HTTP requests that the server sends for the client (PROTOCOL.md, "HTTP
// requests").
const (
	MethodHTTPRequest = "http/request"

	NotificationHTTPBodyDelta = "http/request/bodyDelta"
)

// HTTPRequest are the params of http/request.
type HTTPRequest struct {
	Method         string       `json:"method"`
	URL            string       `json:"url"`
	Headers        []HTTPHeader `json:"headers,omitempty"` // in this order
	Body           []byte       `json:"bodyBase64,omitempty"`
	TimeoutMs      *uint64      `json:"timeoutMs,omitempty"` // of the whole exchange; nil: none
	RedirectPolicy string       `json:"redirectPolicy"`      // RedirectFollow, RedirectStop
	RequestID      string       `json:"requestId"`           // of the stream
	StreamResponse bool         `json:"streamResponse"`
}

// The values of HTTPRequest.RedirectPolicy.
const (
	RedirectFollow = "follow"
	RedirectStop   = "stop"
)

// HTTPHeader is one line of a header. ValueEnvVar is for requests alone: the
// name of a variable of the server's environment whose value comes after Value.
type HTTPHeader struct {
	Name        string  `json:"name"`
	Value       string  `json:"value"`
	ValueEnvVar *string `json:"valueEnvVar,omitempty"`
}

// DecodeHTTPRequest decodes the params of http/request. Body is a copy. What
// makes a method, a URL or a header valid is not looked at.
func DecodeHTTPRequest(raw json.RawMessage) (p HTTPRequest, err error) {
	err = decodeParams(raw, "HttpRequestParams", func(f *fields) {
		p.Method = f.string("method")
		p.URL = f.string("url")
		p.Headers = parse(f, f.get("headers"), decodeHTTPHeaders)
		if f.optional("bodyBase64") != nil {
			p.Body = f.base64("bodyBase64")
		}
		p.TimeoutMs = f.optionalUnsigned("timeoutMs")
		p.RedirectPolicy = RedirectFollow
		if raw := f.get("redirectPolicy"); raw != nil {
			p.RedirectPolicy = parse(f, raw, decodeRedirectPolicy)
		}
		p.RequestID = f.identifier("requestId")
		p.StreamResponse = f.boolOr("streamResponse", false)
	})
	return p, err
}

func decodeHTTPHeaders(raw json.RawMessage) ([]HTTPHeader, error) {
	if kind := kindOf(raw); kind != "sequence" {
		return nil, fmt.Errorf("invalid type: %s, expected a sequence", kind)
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return nil, err
	}
	headers := make([]HTTPHeader, len(items))
	for i, item := range items {
		f, err := fieldsOf(item, "HttpHeader")
		if err != nil {
			return nil, err
		}
		headers[i] = HTTPHeader{
			Name:        f.string("name"),
			Value:       f.string("value"),
			ValueEnvVar: f.optionalString("valueEnvVar"),
		}
		if f.err != nil {
			return nil, f.err
		}
	}
	return headers, nil
}

func decodeRedirectPolicy(raw json.RawMessage) (string, error) {
	policy, err := decodeString(raw)
	switch {
	case err != nil:
		return "", fmt.Errorf("invalid type: %s, expected string or map", kindOf(raw))
	case policy != RedirectFollow && policy != RedirectStop:
		return "", fmt.Errorf("unknown variant `%s`, expected `follow` or `stop`", policy)
	}
	return policy, nil
}

// HTTPResponse is the answer to http/request. Body is empty when it is streamed.
type HTTPResponse struct {
	Status  int          `json:"status"`
	Headers []HTTPHeader `json:"headers"` // names in lower case
	Body    []byte       `json:"bodyBase64"`
}

// EncodedLen is about how many bytes the answer takes on the wire.
func (r *HTTPResponse) EncodedLen() int {
	n := 64 + base64.EncodedLen(len(r.Body))
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
	b = base64.AppendEncode(b, r.Body)
	return append(b, `"}`...)
}

// HTTPBodyDelta are the params of http/request/bodyDelta: a piece of a streamed
// body. The last one is Done, and has an Error when the body is not complete.
type HTTPBodyDelta struct {
	RequestID string
	Seq       uint64 // from 1, without gaps
	Data      []byte
	Done      bool
	Error     *string
}

// AppendHTTPBodyDelta appends the notification http/request/bodyDelta.
func AppendHTTPBodyDelta(b []byte, d HTTPBodyDelta) []byte {
	b = append(b, `{"method":"http/request/bodyDelta","params":{"requestId":`...)
	b = appendString(b, d.RequestID)
	b = append(b, `,"seq":`...)
	b = strconv.AppendUint(b, d.Seq, 10)
	b = append(b, `,"deltaBase64":"`...)
	b = base64.AppendEncode(b, d.Data)
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

// DecodeHTTPBodyDelta decodes the params of http/request/bodyDelta, for
// receivers. Data is a copy.
func DecodeHTTPBodyDelta(raw json.RawMessage) (d HTTPBodyDelta, err error) {
	err = decodeParams(raw, "HttpRequestBodyDeltaNotification", func(f *fields) {
		d.RequestID = f.string("requestId")
		d.Seq = f.unsigned("seq")
		d.Data = f.base64("deltaBase64")
		d.Done = f.bool("done")
		d.Error = f.optionalString("error")
	})
	return d, err
}
