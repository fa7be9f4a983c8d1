package server

import (
	"context"
	"io"
	"slices"

	"execserver/internal/filesystem"
	"execserver/internal/rpc"
	"execserver/protocol"
)

// readFile serves fs/readFile.
func (c *connection) readFile(r *rpc.Request, p protocol.FileParams, paths []string) {
	c.readOpened(r, func(ctx context.Context) (*filesystem.File, error) {
		return filesystem.Open(ctx, paths[0], filesystem.ReadOptions{Links: links(p.FollowSymlinks)})
	})
}

// readOpened answers with the content of the file that open opens.
func (c *connection) readOpened(r *rpc.Request, open func(context.Context) (*filesystem.File, error)) {
	c.answer(r, func() (any, error) {
		f, err := open(r.Context())
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return c.readWhole(r, f)
	})
}

// A file is read in pieces, which are encoded one by one, so its content is in memory
// once. The size of a piece is a multiple of three bytes, which base64 encodes without
// padding, and of a page, which some files in /proc require. Files may grow while they
// are read, and files in /proc have size 0, so some room is reserved beyond the size.
const (
	firstPieceBytes = 3 * 4096
	pieceBytes      = 16 * firstPieceBytes
	slackBytes      = 4 << 10 // and a sixteenth of the size
)

// readWhole builds the answer to fs/readFile.
func (c *connection) readWhole(r *rpc.Request, f *filesystem.File) (any, error) {
	room := int(f.Size()) + int(f.Size())/16 + slackBytes
	answerLen := func(content int) int {
		if content <= firstPieceBytes {
			return protocol.Base64Len(content) + firstPieceBytes + 64
		}
		return protocol.Base64Len(content) + pieceBytes + 64
	}
	return c.reserveInSteps(r, answerLen(room), func(fits func(int) bool) (any, error) {
		if err := f.Rewind(); err != nil {
			return nil, err
		}
		answer, binary := r.BeginBinary(room)
		if !binary {
			answer = append(r.Begin(protocol.Base64Len(room)), `{"dataBase64":"`...)
		}
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
				room = 2 * read // for the next call
				return nil, nil
			}
			if more := protocol.Base64Len(n) + 2; cap(answer)-len(answer) < more {
				answer = slices.Grow(answer, max(len(answer), more)) // within the room that fits has reserved
			}
			if binary {
				answer = append(answer, piece[:n]...)
			} else {
				answer = protocol.AppendBase64(answer, piece[:n])
			}
			switch {
			case err == nil:
			case binary: // the end of the file
				return answer, nil
			default:
				return append(answer, `"}`...), nil
			}
			if len(piece) < pieceBytes {
				piece = make([]byte, pieceBytes)
			}
		}
	})
}
