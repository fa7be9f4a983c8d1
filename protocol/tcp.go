package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Connections that the server makes for the client (PROTOCOL.md, "Forwarded
// connections").
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
	StreamID string    `json:"streamId" wire:"identifier"` // chosen by the client
	Host     *string   `json:"host,omitempty" wire:"identifier"`
	Port     *uint16   `json:"port,omitempty"`
	Path     *Path     `json:"path,omitempty"` // of a unix socket
	Credit   TCPCredit `json:"credit"`         // bytes that the server may send
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
	Credit TCPCredit `json:"credit"` // bytes that the client may send
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

// TCPMoreCredit are the params of tcp/credit: the sender accepts so many more bytes.
type TCPMoreCredit struct {
	StreamID string    `json:"streamId" wire:"identifier"`
	Bytes    TCPCredit `json:"bytes"`
}

// TCPEnd are the params of tcp/end: the sender sends no more data.
type TCPEnd struct {
	StreamID string `json:"streamId" wire:"identifier"`
}

// TCPReset are the params of tcp/reset: the sender has forgotten the stream.
type TCPReset struct {
	StreamID string `json:"streamId" wire:"identifier"`
	Message  string `json:"message" wire:"absent="`
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
