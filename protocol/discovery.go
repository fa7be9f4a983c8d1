package protocol

import "encoding/json"

// MethodDiscoverRoots reads the manifests of plugins and skills (PROTOCOL.md,
// "capabilityRoots/discoverV1").
const MethodDiscoverRoots = "capabilityRoots/discoverV1"

// MaxDiscoveryRoots is the largest number of roots in a request.
const MaxDiscoveryRoots = 128

// DiscoverRootsParams are the params of capabilityRoots/discoverV1.
type DiscoverRootsParams struct {
	Roots []CapabilityRoot `json:"roots"`
}

func (p *DiscoverRootsParams) check() error {
	if len(p.Roots) > MaxDiscoveryRoots {
		return Errorf(CodeInvalidRequest, "capability root discovery accepts at most %d roots", MaxDiscoveryRoots)
	}
	return nil
}

// CapabilityRoot is one directory to read.
type CapabilityRoot struct {
	ID      string          `json:"id" wire:"identifier"` // echoed
	Path    Path            `json:"path"`
	Sandbox json.RawMessage `json:"sandbox,omitempty" wire:"or=sandboxPolicy"`
}

// DiscoveredRoots is the answer to capabilityRoots/discoverV1, in the order of the
// request.
type DiscoveredRoots struct {
	Roots []DiscoveredRoot `json:"roots"`
}

// DiscoveredRoot is the content of one directory. Error says why the server could not
// read it, and Warnings what it left out.
type DiscoveredRoot struct {
	ID                 string            `json:"id"`
	Path               Path              `json:"path"`
	Plugin             *DiscoveredPlugin `json:"plugin"`
	Skills             []DiscoveredSkill `json:"skills"`
	NamespaceManifests []DiscoveredFile  `json:"namespaceManifests"`
	Warnings           []string          `json:"warnings"`
	Error              *string           `json:"error"`
}

// DiscoveredPlugin is the plugin in a root.
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

// DiscoveredFile is a text file.
type DiscoveredFile struct {
	Path     Path   `json:"path"`
	Contents string `json:"contents"`
}
