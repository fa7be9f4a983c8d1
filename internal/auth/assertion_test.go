package auth_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"execserver/internal/auth"
	"execserver/internal/testkit"
)

// principalOf returns the principal of a [[token]] at a gateway.
func principalOf(t *testing.T, entry string) *auth.Principal {
	t.Helper()
	text := fmt.Sprintf("[[token]]\nname = \"ann\"\nsha256 = \"%x\"\n%s", sha256.Sum256([]byte(capabilityToken)), entry)
	a := newAuthenticator(t, auth.Config{TokensFile: testkit.Secret(t, text), Gateway: true})
	p, refusal := a.Authenticate(&http.Request{Header: http.Header{"Authorization": {"Bearer " + capabilityToken}}})
	if refusal != nil {
		t.Fatal(refusal)
	}
	return p
}

// TestAssertions passes principals on as a gateway does.
func TestAssertions(t *testing.T) {
	for _, entry := range []string{
		`scope = ["full"]`,
		`scope = ["full", "observe"]` + "\nexpires = 2099-01-01T00:00:00Z",
		`scope = ["files"]` + "\nroot = \"/srv\"\naccess = \"write\"",
		`scope = ["exec"]` + "\ncommands = [[\"/bin/ls\", \"...\"]]\ndirectory = \"/srv\"\nmax_session = \"8h\"",
		`scope = ["exec"]` + "\ncommands = []",
		`scope = ["exec"]` + "\n[token.sandbox]",
		`scope = ["exec"]` + "\n[token.sandbox]\nread = [\"/etc\"]\nwrite = [\"/srv\"]\ndeny = [\"/srv/secret\"]\nnetwork = true",
		`scope = ["exec"]` + "\naccount = \"acme\"\nmachines = [\"box-1\", \"gpu-*\"]",
		`scope = ["exec"]` + "\nmachines = []",
	} {
		before := principalOf(t, entry)
		after, err := auth.FromAssertion(before.Assertion())
		if err != nil {
			t.Errorf("%s: %v", entry, err)
			continue
		}
		if after.Name != before.Name || !after.Expires.Equal(before.Expires) || after.Alone != before.Alone || !reflect.DeepEqual(after.Grant, before.Grant) {
			t.Errorf("%s\ncame as %#v, %#v\ngoes in %#v, %#v", entry, after, after.Grant, before, before.Grant)
		}
	}
	anybody, err := auth.FromAssertion(auth.Unauthenticated.Assertion())
	if err != nil || !reflect.DeepEqual(anybody, auth.Unauthenticated) {
		t.Errorf("%#v, %v", anybody, err)
	}
}

func TestBadAssertions(t *testing.T) {
	for _, text := range []string{
		``, `null`, `{}`, `[]`, `{"name":""}`, `{"name":"ann","grant":{}}`, `{"name":"ann","grant":{"scope":["all"]}}`,
		`{"name":"ann","grant":{"scope":["files"]}}`, `{"name":"ann","grant":{"scope":["files"],"root":"relative"}}`,
		`{"name":"ann"}`, `{"name":"ann","all":false}`, `{"name":"ann","all":true,"grant":{"scope":["exec"]}}`,
		`{"name":"ann","all":true,"fence":"high"}`, `{"name":"ann","grant":{"scope":["exec"],"fence":"high"}}`,
	} {
		if p, err := auth.FromAssertion([]byte(text)); err == nil {
			t.Errorf("%s: %#v", text, p)
		}
	}
}

func TestMachinesOfGrants(t *testing.T) {
	some := principalOf(t, "scope = [\"exec\"]\naccount = \"acme\"\nmachines = [\"box-1\", \"gpu-*\"]").Grant
	none := principalOf(t, "scope = [\"exec\"]\nmachines = []").Grant
	all := principalOf(t, "scope = [\"exec\"]").Grant
	for _, row := range []struct {
		grant   *auth.Grant
		account string
		name    string
		may     bool
	}{
		{nil, "default", "box-1", true},
		{all, "default", "box-1", true},
		{none, "default", "box-1", false},
		{some, "acme", "box-1", true},
		{some, "acme", "box-12", false},
		{some, "acme", "gpu-", true},
		{some, "acme", "gpu-9", true},
		{some, "acme", "", false},
	} {
		if got := row.grant.AllowsMachine(row.name); got != row.may || row.grant.InAccount() != row.account {
			t.Errorf("%v: %q in %s: %v", row.grant, row.name, row.grant.InAccount(), got)
		}
	}
	// A server does not honor them.
	text := fmt.Sprintf("[[token]]\nname = \"ann\"\nsha256 = %q\nscope = [\"full\"]\n", capabilityDigest)
	for _, entry := range []string{"account = \"acme\"", "machines = []"} {
		if _, err := auth.New(auth.Config{TokensFile: testkit.Secret(t, text+entry)}); err == nil || !strings.Contains(err.Error(), "tokens of a gateway") {
			t.Errorf("%s: %v", entry, err)
		}
	}
}
