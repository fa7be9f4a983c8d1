package protocol

import "encoding/json"

// MethodDiscoverRoots reads the manifests of plugins and skills (PROTOCOL.md,
// "capabilityRoots/discoverV1").
const MethodDiscoverRoots = "capabilityRoots/discoverV1"

// MaxDiscoveryRoots is how many roots may be asked for at once.
const MaxDiscoveryRoots = 128

// DiscoverRoots are the params of capabilityRoots/discoverV1.
type DiscoverRoots struct {
	Roots []DiscoverRoot `json:"roots"`
}

// DiscoverRoot is one directory to look at.
type DiscoverRoot struct {
	ID      string          `json:"id"` // echoed
	Path    Path            `json:"path"`
	Sandbox json.RawMessage `json:"sandbox,omitempty"`
}

// DecodeDiscoverRoots decodes the params of capabilityRoots/discoverV1.
func DecodeDiscoverRoots(raw json.RawMessage) (p DiscoverRoots, err error) {
	err = decodeParams(raw, "CapabilityRootsDiscoverParams", func(f *fields) {
		p.Roots = parse(f, f.required("roots"), func(raw json.RawMessage) ([]DiscoverRoot, error) {
			return decodeList(raw, decodeDiscoverRoot)
		})
		if len(p.Roots) > MaxDiscoveryRoots {
			f.fail(Errorf(CodeInvalidRequest, "capability root discovery accepts at most %d roots", MaxDiscoveryRoots))
		}
	})
	return p, err
}

func decodeDiscoverRoot(raw json.RawMessage) (DiscoverRoot, error) {
	f, err := fieldsOf(raw, "CapabilityRoot")
	if err != nil {
		return DiscoverRoot{}, err
	}
	root := DiscoverRoot{ID: f.identifier("id"), Path: f.path("path"), Sandbox: f.sandbox()}
	return root, f.err
}

// DiscoveredRoots is the answer to capabilityRoots/discoverV1, in the order of the
// request.
type DiscoveredRoots struct {
	Roots []DiscoveredRoot `json:"roots"`
}

// DiscoveredRoot is what was found in one directory. Error says why it could not
// be looked at, Warnings what was left out.
type DiscoveredRoot struct {
	ID                 string            `json:"id"`
	Path               Path              `json:"path"`
	Plugin             *DiscoveredPlugin `json:"plugin"`
	Skills             []DiscoveredSkill `json:"skills"`
	NamespaceManifests []DiscoveredFile  `json:"namespaceManifests"`
	Warnings           []string          `json:"warnings"`
	Error              *string           `json:"error"`
}

// DiscoveredPlugin is the plugin that a root is.
type DiscoveredPlugin struct {
	Manifest   DiscoveredFile  `json:"manifest"`
	MCPConfig  *DiscoveredFile `json:"mcpConfig"`
	AppsConfig *DiscoveredFile `json:"appsConfig"`
}

// DiscoveredSkill is a skill below a root.
type DiscoveredSkill struct {
	Instructions DiscoveredFile  `json:"instructions"`
	Metadata     *DiscoveredFile `json:"metadata"`
}

// DiscoveredFile is a file of text.
type DiscoveredFile struct {
	Path     Path   `json:"path"`
	Contents string `json:"contents"`
}
