package server

import (
	"context"
	"io"
	"slices"

	"execserver/filesystem"
	"execserver/internal/base64"
	"execserver/protocol"
	"execserver/rpc"
)

// readFile serves fs/readFile.
func (c *connection) readFile(r *rpc.Request, p protocol.File) {
	paths, ok := c.native(r, p.Sandbox, p.Path)
	if !ok {
		return
	}
	c.readOpened(r, func(ctx context.Context) (*filesystem.File, error) {
		return filesystem.Open(ctx, paths[0], filesystem.ReadOptions{Links: links(p.FollowSymlinks)})
	})
}

// readOpened answers with the content of the file that open opens.
func (c *connection) readOpened(r *rpc.Request, open func(context.Context) (*filesystem.File, error)) {
	c.look(r, func() (any, error) {
		f, err := open(r.Context())
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return c.readWhole(r, f)
	})
}

// A file is read in pieces, which are encoded one by one, so that its content is
// in memory once. Pieces have a multiple of three bytes, which base64 encodes
// without padding, and of pages, which some files in /proc want. Files grow while
// they are read, and those in /proc say that they are empty: some room is
// reserved beyond the size.
const (
	firstPieceBytes = 3 * 4096
	pieceBytes      = 16 * firstPieceBytes
	slackBytes      = 4 << 10 // and a sixteenth of the size
)

// readWhole makes the answer to fs/readFile.
func (c *connection) readWhole(r *rpc.Request, f *filesystem.File) (any, error) {
	room := int(f.Size()) + int(f.Size())/16 + slackBytes
	answerLen := func(content int) int {
		if content <= firstPieceBytes {
			return base64.EncodedLen(content) + firstPieceBytes + 64
		}
		return base64.EncodedLen(content) + pieceBytes + 64
	}
	return c.reserveInSteps(r, answerLen(room), func(fits func(int) bool) (any, error) {
		if err := f.Rewind(); err != nil {
			return nil, err
		}
		answer := append(r.Begin(base64.EncodedLen(room)), `{"dataBase64":"`...)
		piece := make([]byte, firstPieceBytes)
		if room > firstPieceBytes {
			piece = make([]byte, pieceBytes)
		}
		for read := 0; ; {
			if r.Context().Err() != nil {
				return nil, context.Cause(r.Context())
			}
			n, err := io.ReadFull(f, piece)
			read += n
			if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
				return nil, err
			}
			if !fits(answerLen(read)) {
				room = 2 * read // when it is called again
				return nil, nil
			}
			if more := base64.EncodedLen(n) + 2; cap(answer)-len(answer) < more {
				answer = slices.Grow(answer, max(len(answer), more)) // as far as fits has reserved
			}
			answer = base64.AppendEncode(answer, piece[:n])
			if err != nil { // the end
				return append(answer, `"}`...), nil
			}
			if len(piece) < pieceBytes {
				piece = make([]byte, pieceBytes)
			}
		}
	})
}
