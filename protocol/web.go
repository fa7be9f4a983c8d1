package protocol

// MethodWebLink asks for a link to the page of the server (PROTOCOL.md, "web/link").
const MethodWebLink = "web/link"

// WebLinkResult is the answer to web/link.
type WebLinkResult struct {
	Path   string `json:"path"`   // of the page, with a fragment that signs in one browser once
	LifeMs uint64 `json:"lifeMs"` // for which the link can be used
}
