package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"execserver/protocol"
)

// RecordingInfo describes a recording of a process at a server (EXTENSIONS.md, "recordings").
type RecordingInfo struct {
	ID        string
	Session   string // id of the session of the process
	Name      string // name of the session when the process started, or ""
	Process   string // id of the process
	Own       bool   // the session belonged to the principal of this Environment
	Principal string // the principal to which it belonged otherwise

	Args          []string
	ArgsTruncated bool // Args is only the beginning
	Dir           string
	TTY           bool      // otherwise the process had pipes
	Input         bool      // what was written to the process is recorded, too
	Live          bool      // the server is still writing the recording
	Started       time.Time // the process
	Ended         time.Time // the recording; zero if it is Live
	Size          int64     // bytes
}

// Recordings returns the recordings that this Environment may read, the newest first: those of the
// same principal or, with the right to observe others, those of all principals. The server needs the
// capability recordings.
func (e *Environment) Recordings(ctx context.Context) ([]RecordingInfo, error) {
	if !e.has(capRecordings) {
		return nil, &UnsupportedError{"list recordings", capRecordings}
	}
	var infos []RecordingInfo
	var p protocol.RecordingsParams
	for {
		var r protocol.RecordingsResult
		raw, err := e.conns.repeat(ctx, protocol.MethodRecordings, p)
		if err == nil {
			err = json.Unmarshal(raw, &r)
		}
		if err != nil {
			return nil, err
		}
		for _, l := range r.Recordings {
			info := RecordingInfo{
				ID: l.RecordingID, Session: l.SessionID, Name: l.SessionName, Process: l.ProcessID, Own: l.Own, Principal: l.Principal,
				Args: l.Argv, ArgsTruncated: l.ArgvTruncated, Dir: l.Cwd, TTY: l.TTY, Input: l.Input, Live: l.Live,
				Started: time.UnixMilli(l.StartedAtMs), Size: l.SizeBytes,
			}
			if !l.Live {
				info.Ended = time.UnixMilli(l.EndedAtMs)
			}
			infos = append(infos, info)
		}
		switch {
		case r.Next == "":
			return infos, nil
		case p.Before != "" && r.Next >= p.Before:
			return nil, errors.New("client: the server lists its recordings without an end")
		}
		p.Before = r.Next
	}
}

// recordingBlock is how much of a recording one request reads.
const recordingBlock = 256 << 10

// Recording returns a reader of a recording: an asciicast of version 2, a text with a JSON
// value in each line. It ends with what the server has written so far. An error comes from
// Read: a *protocol.Error with the code InvalidRequest if there is no such recording. The
// reader must not be used concurrently, and needs no closing. The server needs the
// capability recordings.
func (e *Environment) Recording(ctx context.Context, id string) io.Reader {
	return &recordingReader{ctx: ctx, env: e, id: id}
}

type recordingReader struct {
	ctx    context.Context
	env    *Environment
	id     string
	offset uint64
	chunk  []byte // that was not read yet
	err    error  // after chunk
}

// Read implements io.Reader.
func (r *recordingReader) Read(b []byte) (int, error) {
	for len(r.chunk) == 0 && r.err == nil && len(b) > 0 {
		r.err = r.fetch()
	}
	if len(r.chunk) == 0 && len(b) > 0 {
		return 0, r.err
	}
	n := copy(b, r.chunk)
	r.chunk = r.chunk[n:]
	return n, nil
}

// fetch reads the next block. The error is for after it.
func (r *recordingReader) fetch() error {
	if !r.env.has(capRecordings) {
		return &UnsupportedError{"read a recording", capRecordings}
	}
	var result protocol.ReadRecordingResult
	raw, err := r.env.conns.repeat(r.ctx, protocol.MethodReadRecording,
		protocol.ReadRecordingParams{RecordingID: r.id, Offset: r.offset, Len: recordingBlock})
	if err == nil {
		err = json.Unmarshal(raw, &result)
	}
	switch {
	case err != nil:
		return err
	case len(result.Chunk) > recordingBlock, len(result.Chunk) == 0 && !result.EOF:
		return fmt.Errorf("client: the server answers a request for %d bytes of a recording with %d", recordingBlock, len(result.Chunk))
	}
	r.chunk = result.Chunk
	r.offset += uint64(len(result.Chunk))
	if result.EOF {
		return io.EOF
	}
	return nil
}

// WebLink returns a link that signs one browser in to the server's web page, once, as the principal
// of this Environment. The link is valid for life; treat it as a secret. It is a path with a
// fragment, relative to the server's address with the scheme http or https. The server needs the
// capability webLink.
func (e *Environment) WebLink(ctx context.Context) (path string, life time.Duration, err error) {
	if !e.has(capWebLink) {
		return "", 0, &UnsupportedError{"get a link to the page", capWebLink}
	}
	var result protocol.WebLinkResult
	raw, err := e.conns.request(ctx, protocol.MethodWebLink, nil)
	if err == nil {
		err = json.Unmarshal(raw, &result)
	}
	return result.Path, millis(result.LifeMs), err
}
