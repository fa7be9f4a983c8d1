package client

import (
	"context"
	"encoding/json"
	"time"

	"execserver/protocol"
)

// WebLink asks for a link to the page of the server: a path with a fragment, to resolve
// against the server's address with the scheme http or https (PROTOCOL.md, "web/link").
// It signs one browser in once, as the principal of this Environment, within life. Treat
// it as a secret. The server needs the capability webLink.
func (e *Environment) WebLink(ctx context.Context) (path string, life time.Duration, err error) {
	if !e.has(capWebLink) {
		return "", 0, &UnsupportedError{"get a link to the page", capWebLink}
	}
	var result protocol.WebLinkResult
	raw, err := e.link.request(ctx, protocol.MethodWebLink, nil)
	if err == nil {
		err = json.Unmarshal(raw, &result)
	}
	return result.Path, millis(result.LifeMs), err
}
