package rpc

import (
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// The formats of binary messages.
const (
	plainMessage      = 0
	compressedMessage = 1
)

// MaxCompressible bounds a message that is compressed, before and after: a few bytes on the wire
// may stand for that much memory.
const MaxCompressible = 2 << 20

// maxCompressed bounds a compressed message. zstd adds a few bytes to each block of noise,
// so a longer one consists of empty blocks, which cost a decoder seconds.
const maxCompressed = MaxCompressible + 32<<10

// minCompressible is the size of the smallest message that is compressed.
const minCompressible = 1 << 10

// compressionsAtOnce is how many messages are compressed at the same time, and decompressed.
const compressionsAtOnce = 2

var zstdEncoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(compressionsAtOnce),
		zstd.WithWindowSize(MaxCompressible), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true))
	if err != nil {
		panic("zstd: " + err.Error()) // the options are constant
	}
	return e
})

var zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(compressionsAtOnce), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(MaxCompressible), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic("zstd: " + err.Error()) // the options are constant
	}
	return d
})

// IsCompressed reports whether a binary message is compressed.
func IsCompressed(msg []byte) bool { return len(msg) > 0 && msg[0] == compressedMessage }

// Decompress appends to dst the plain binary message that a compressed one stands for. It
// refuses one of more than limit bytes, and any of more than MaxCompressible.
func Decompress(dst, msg []byte, limit int64) ([]byte, error) {
	if len(msg) > maxCompressed {
		return nil, fmt.Errorf("a compressed message has %d bytes, the limit is %d bytes", len(msg), maxCompressed)
	}
	var header zstd.Header
	if err := header.Decode(msg[1:]); err != nil {
		return nil, fmt.Errorf("a compressed message is not zstd: %w", err)
	}
	if !header.HasFCS || header.Skippable {
		return nil, errors.New("a compressed message does not say how long it is")
	}
	size := header.FrameContentSize
	if bound := uint64(min(limit-1, MaxCompressible)); size > bound {
		return nil, fmt.Errorf("a compressed message of %d bytes exceeds the limit of %d bytes", size, bound)
	}
	if err := checkBlocks(msg[1:], &header); err != nil {
		return nil, err
	}
	if cap(dst)-len(dst) < int(size)+1 {
		dst = append(make([]byte, 0, len(dst)+int(size)+1), dst...)
	}
	from := len(dst)
	dst = append(dst, plainMessage)
	dst, err := zstdDecoder().DecodeAll(msg[1:], dst[:from+1:from+1+int(size)])
	if err != nil {
		return nil, fmt.Errorf("a compressed message cannot be decoded: %w", err)
	}
	return dst, nil
}

// The blocks of a frame may be this many, and one more for each so many bytes of its content.
// Each costs a decoder about as much as a kilobyte of content, for it may have tables of its
// own. Encoders make one of 128 KiB, or split that into 196 at most.
const (
	freeBlocks    = 64
	bytesPerBlock = 512
)

var errNotOneFrame = errors.New("a compressed message is not exactly one frame")

// checkBlocks reports whether a frame ends where the message does, and has no more blocks than
// its content needs. It reads only the headers of the blocks. The decoder would accept further
// frames that have no content.
func checkBlocks(msg []byte, header *zstd.Header) error {
	rest := msg[header.HeaderSize:]
	left := freeBlocks + header.FrameContentSize/bytesPerBlock
	for last := false; !last; left-- {
		if left == 0 {
			return fmt.Errorf("a compressed message of %d bytes has too many blocks", header.FrameContentSize)
		}
		if len(rest) < 3 {
			return errNotOneFrame
		}
		// RFC 8878, 3.1.1.2
		block := int(rest[0]) | int(rest[1])<<8 | int(rest[2])<<16
		last = block&1 != 0
		size := block >> 3
		if kind := block >> 1 & 3; kind == 1 { // one byte that is repeated
			size = 1
		}
		if len(rest) < 3+size {
			return errNotOneFrame
		}
		rest = rest[3+size:]
	}
	if header.HasCheckSum && len(rest) != 4 || !header.HasCheckSum && len(rest) != 0 {
		return errNotOneFrame
	}
	return nil
}

// A Compressor compresses the messages of one connection as long as it makes them smaller. The
// zero value is ready for use. Its methods may be called concurrently.
type Compressor struct {
	mu    sync.Mutex
	skips int // messages to send uncompressed before the next attempt
	pause int // the previous value of skips when it was set
}

// maxSkips bounds the messages that are sent uncompressed before another attempt.
const maxSkips = 64

// Append appends to dst the compressed form of a plain binary message. ok is false if the
// message should be sent as it is.
func (c *Compressor) Append(dst, msg []byte) (_ []byte, ok bool) {
	if len(msg) < minCompressible || len(msg) > MaxCompressible || msg[0] != plainMessage || !c.attempt() {
		return nil, false
	}
	dst = zstdEncoder().EncodeAll(msg[1:], append(dst, compressedMessage))
	ok = len(dst) <= len(msg)-len(msg)/8
	c.learn(ok)
	return dst, ok
}

// attempt reports whether to compress the next message.
func (c *Compressor) attempt() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.skips > 0 {
		c.skips--
		return false
	}
	return true
}

// learn records whether an attempt was worthwhile. After each one that was not, twice as many
// messages are sent uncompressed.
func (c *Compressor) learn(paid bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if paid {
		c.skips, c.pause = 0, 0
		return
	}
	c.pause = min(max(1, 2*c.pause), maxSkips)
	c.skips = c.pause
}
