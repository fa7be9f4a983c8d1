package server

import (
	"sync"

	"execserver/internal/extension"
	"execserver/internal/rpc"
	"execserver/internal/session"
	"execserver/protocol"
)

// sessionHandler serves the methods about sessions.
type sessionHandler struct{ *caller }

// takeOver serves session/takeOver. It runs on the reader, so that the client's next
// message is already the owner's.
func (h *sessionHandler) takeOver(r *rpc.Request, _ protocol.NoParams) {
	if err := h.server.sessions.TakeOver(h.outbox); err != nil {
		r.Fail(err)
		return
	}
	h.observing = false
	h.session.Own(&h.changes)
	h.server.audit.Record(h.event("session taken over"))
	r.Reply(protocol.Empty{})
}

// keep serves session/keep. It runs on the reader, so that a connection that ends after
// the request leaves a session with the lease.
func (h *sessionHandler) keep(r *rpc.Request, p protocol.KeepParams) {
	if err := h.leases(); err != nil {
		r.Fail(err)
		return
	}
	granted, err := h.server.sessions.Keep(h.outbox, p)
	if err != nil {
		r.Fail(err)
		return
	}
	e := h.event("session kept")
	e.KeepMs = new(uint64(granted.Milliseconds()))
	if p.Name != nil {
		e.Name = *p.Name
	}
	h.server.audit.Record(e)
	r.Reply(protocol.KeepResult{KeepMs: *e.KeepMs})
}

// list serves session/list.
func (h *sessionHandler) list(r *rpc.Request, _ protocol.NoParams) {
	r.Pool(func() {
		list, err := h.server.sessions.List(h.viewer(), r.Reserve)
		reply(r, list, err)
	})
}

// end serves session/end.
func (h *sessionHandler) end(r *rpc.Request, p protocol.EndSessionParams) {
	owner, answered, err := h.server.sessions.EndControlled(p.SessionID, h.credentials(), h.viewer())
	if err != nil {
		r.Fail(err)
		return
	}
	defer answered()
	e := h.event("session ended")
	e.Session = p.SessionID
	h.server.audit.Record(e)
	r.Reply(protocol.Empty{})
	if owner != nil { // it may be this connection, which gets the reply first
		owner.Disconnect(session.EndedByRequest)
	}
}

// webLink serves web/link.
func (h *sessionHandler) webLink(r *rpc.Request, _ protocol.NoParams) {
	if !h.server.servesPage() {
		r.Fail(protocol.Errorf(protocol.CodeInvalidRequest, "`%s` is refused: this server has no page", r.Method))
		return
	}
	if h.principal.Browser {
		// A link would let it stay after it was signed out.
		r.Fail(protocol.Errorf(protocol.CodeInvalidRequest, "`%s` is refused to a browser: exec-server web prints links", r.Method))
		return
	}
	path, life := h.server.ext.Page.Link(h.principal)
	h.server.audit.Record(h.event("link to the page"))
	r.Reply(protocol.WebLinkResult{Path: path, LifeMs: uint64(life.Milliseconds())})
}

// recordingHandler serves the methods about recordings.
type recordingHandler struct {
	*caller

	mu   sync.Mutex
	last string // the recording that was read last
}

// recorder returns the server's recorder. If there is none, it refuses the request and returns
// nil.
func (h *recordingHandler) recorder(r *rpc.Request) extension.Recorder {
	recorder := h.server.ext.Recorder
	if recorder == nil {
		r.Fail(protocol.Errorf(protocol.CodeInvalidRequest, "`%s` is refused: this server records nothing", r.Method))
	}
	return recorder
}

// list serves recording/list.
func (h *recordingHandler) list(r *rpc.Request, p protocol.RecordingsParams) {
	recorder := h.recorder(r)
	if recorder == nil {
		return
	}
	r.HeavyPool(func() {
		list, err := recorder.List(p, h.recordingViewer(), r.Reserve)
		reply(r, list, err)
	})
}

// maxRecordingBlock bounds what one recording/read returns.
const maxRecordingBlock = 1 << 20

// read serves recording/read.
func (h *recordingHandler) read(r *rpc.Request, p protocol.ReadRecordingParams) {
	recorder := h.recorder(r)
	if recorder == nil {
		return
	}
	if p.Len < 1 || p.Len > maxRecordingBlock {
		r.Fail(protocol.Errorf(protocol.CodeInvalidParams, "len is %d, expected 1 to %d", p.Len, maxRecordingBlock))
		return
	}
	r.Pool(func() {
		result, err := recorder.Read(p, h.recordingViewer(), func(n int) error { return r.Reserve(protocol.Base64Len(n) + 64) })
		if err != nil {
			r.Fail(err)
			return
		}
		if h.begins(p) {
			e := h.event("recording read")
			e.Name = p.RecordingID
			h.server.audit.Record(e)
		}
		r.Reply(result)
	})
}

// begins reports whether a request begins to read a recording: it reads its first bytes, or
// the previous request was about another one.
func (h *recordingHandler) begins(p protocol.ReadRecordingParams) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := h.last
	h.last = p.RecordingID
	return p.Offset == 0 || p.RecordingID != last
}
