package stream

import (
	"bytes"
	"crypto/ecdh"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// The handshake. A relay may precede it:
//
//	preface   prefaceMagic, prefaceVersion, 0; seconds that a stream is kept if the relay closes the link
//
// The end that dials begins:
//
//	hello     magic, version; 0: begin, 1: resume; identifier; nonce or public key
//	reply     magic, version; 0, or a Code and no more; identifier; nonce or public key; Keep in seconds
//
// A stream that begins has its link then. To resume one:
//
//	proof     generation, received; mac
//	answer    0, or a Code and no more; received; mac
//
// The secret is an HMAC of both public keys, under what they agree on. A mac is an HMAC under the
// secret of who sends it, and of everything sent before it on the link. A link with a generation
// that is not higher than an earlier one is refused: it may have been under way for long.
const (
	magic       = "\x00stream"
	version     = 1
	idSize      = 16
	nonceSize   = 32
	helloSize   = len(magic) + 2 + idSize + nonceSize
	refusalSize = len(magic) + 2
	replySize   = refusalSize + idSize + nonceSize + 4
	proofSize   = 16 // without the mac
	answerSize  = 8  // without the code and the mac

	prefaceMagic   = "\x00relay"
	prefaceVersion = 1
)

// Preface returns what a relay writes to the end that accepts before anything else, so that a stream
// is kept for this long only, in whole seconds, when the relay has closed its link. Zero changes
// nothing.
func Preface(keep time.Duration) []byte {
	seconds := min(max(keep/time.Second, 0), math.MaxUint32)
	return binary.BigEndian.AppendUint32(append([]byte(prefaceMagic), prefaceVersion, 0), uint32(seconds))
}

var (
	errNoStream = errors.New("what answers over the link is not the other end of a stream")
	errNoProof  = errors.New("what answers over the link does not know the secret of the stream")
)

// handshake is the part of a link before the first frame.
type handshake struct {
	*link
	timer *time.Timer // closes the link
	said  []byte      // in both directions
}

func newHandshake(l *link) *handshake {
	return &handshake{link: l, timer: time.AfterFunc(silence, func() { _ = l.close() })}
}

// receive returns the next n bytes.
func (h *handshake) receive(n int) ([]byte, error) {
	b, err := h.take(n)
	if err != nil {
		return nil, h.failed("read from", err)
	}
	b = bytes.Clone(b)
	h.timer.Reset(silence)
	h.said = append(h.said, b...)
	return b, nil
}

func (h *handshake) send(b []byte) error {
	h.said = append(h.said, b...)
	if _, err := h.rwc.Write(b); err != nil {
		return h.failed("write to", err)
	}
	return nil
}

// failed returns the error for one of the link.
func (h *handshake) failed(what string, err error) error {
	if !h.timer.Stop() { // it has closed the link
		err = errSilent
	}
	return fmt.Errorf("handshake: %s the link: %w", what, err)
}

// mac returns the mac of who, of what was said, and of b.
func (h *handshake) mac(secret []byte, who string, b []byte) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(who))
	m.Write(h.said)
	m.Write(b)
	return m.Sum(nil)
}

const (
	dialing   = "dial"
	accepting = "accept"
)

// sendSigned sends b and its mac.
func (h *handshake) sendSigned(secret []byte, who string, b []byte) error {
	return h.send(append(b, h.mac(secret, who, b)...))
}

// receiveSigned returns n bytes that have a mac.
func (h *handshake) receiveSigned(secret []byte, who string, n int) ([]byte, error) {
	before := len(h.said)
	b, err := h.receive(n + sha256.Size)
	if err != nil {
		return nil, err
	}
	h.said = h.said[:before]
	if !hmac.Equal(b[n:], h.mac(secret, who, b[:n])) {
		return nil, errNoProof
	}
	h.said = append(h.said, b...)
	return b[:n], nil
}

// agree returns the secret of a stream.
func agree(own *ecdh.PrivateKey, other, dialed, accepted []byte) ([]byte, error) {
	key, err := ecdh.X25519().NewPublicKey(other)
	if err != nil {
		return nil, err
	}
	shared, err := own.ECDH(key)
	if err != nil {
		return nil, err
	}
	m := hmac.New(sha256.New, shared)
	m.Write([]byte(magic))
	m.Write(dialed)
	m.Write(accepted)
	return m.Sum(nil), nil
}

// greet is the handshake of the end that dials, up to the reply.
func (h *handshake) greet(kind byte, id, nonce []byte) (reply []byte, err error) {
	hello := append([]byte(magic), version, kind)
	if err := h.send(append(append(hello, id...), nonce...)); err != nil {
		return nil, err
	}
	b, err := h.receive(refusalSize)
	switch {
	case err != nil:
		return nil, err
	case string(b[:len(magic)]) != magic:
		return nil, fmt.Errorf("%w: it said %q", errNoStream, b)
	case b[refusalSize-1] != 0:
		return nil, Code(b[refusalSize-1])
	case b[refusalSize-2] != version:
		return nil, Version
	}
	return h.receive(replySize - refusalSize)
}

// begin makes a stream.
func (h *handshake) begin() (*Conn, error) {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	own := key.PublicKey().Bytes()
	reply, err := h.greet(0, make([]byte, idSize), own)
	if err != nil {
		return nil, err
	}
	other := reply[idSize : idSize+nonceSize]
	c := newConn(time.Duration(binary.BigEndian.Uint32(reply[idSize+nonceSize:])) * time.Second)
	c.id = [idSize]byte(reply)
	if c.secret, err = agree(key, other, own, other); err != nil {
		return nil, err
	}
	c.dials = true
	c.mu.Lock()
	defer c.mu.Unlock()
	return c, c.attach(h.link, 0)
}

// resume attaches the link to a stream.
func (h *handshake) resume(c *Conn) error {
	nonce := make([]byte, nonceSize)
	_, _ = rand.Read(nonce) // never fails
	if _, err := h.greet(1, c.id[:], nonce); err != nil {
		return err
	}
	c.mu.Lock()
	c.generation++
	proof := binary.BigEndian.AppendUint64(nil, c.generation)
	proof = binary.BigEndian.AppendUint64(proof, uint64(c.received()))
	c.mu.Unlock()
	if err := h.sendSigned(c.secret, dialing, proof); err != nil {
		return err
	}
	code, err := h.receive(1)
	if err != nil {
		return err
	}
	if code[0] != 0 {
		return Code(code[0])
	}
	answer, err := h.receiveSigned(c.secret, accepting, answerSize)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attach(h.link, int64(binary.BigEndian.Uint64(answer)))
}
