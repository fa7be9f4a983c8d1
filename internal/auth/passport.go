package auth

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// passport is what a gateway tells a machine about a principal that it has admitted. It says
// what the principal may do or, in words, that it may do all; a machine refuses one with a
// restriction that it does not know.
type passport struct {
	Name    string      `json:"name,omitempty"`
	Expires time.Time   `json:"expires,omitzero"`
	Alone   bool        `json:"alone,omitempty"`
	All     bool        `json:"all,omitempty"`   // everything is allowed,
	Grant   *grantEntry `json:"grant,omitempty"` // or this
	Sandbox bool        `json:"sandbox,omitempty"`
}

// Passport returns JSON of which FromPassport makes the principal again, at a machine that
// trusts this program.
func (p *Principal) Passport() []byte {
	pass := passport{Name: p.Name, Expires: p.Expires, Alone: p.Alone, All: p.Grant == nil}
	if p.Grant != nil {
		pass.Grant, pass.Sandbox = &p.Grant.said, p.Grant.sandboxed
	}
	text, _ := json.Marshal(pass) // cannot fail
	return text
}

// FromPassport returns the principal of a passport. Its credentials hold until they expire:
// only the gateway knows whether they are revoked.
func FromPassport(text []byte) (*Principal, error) {
	var pass passport
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&pass); err != nil {
		return nil, fmt.Errorf("the passport is not understood: %w", err)
	}
	if pass.Name == "" && !pass.Alone {
		return nil, errors.New("the passport names nobody")
	}
	if pass.All == (pass.Grant != nil) {
		return nil, errors.New("the passport does not say what it allows")
	}
	p := &Principal{Name: pass.Name, Expires: pass.Expires, Alone: pass.Alone}
	if pass.Grant == nil {
		return p, nil
	}
	var err error
	p.Grant, err = pass.Grant.grant(pass.Sandbox)
	return p, err
}
