package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// bill is a software bill of materials, CycloneDX 1.6 in JSON. It has no serial number and
// no time, and names no tool, so that the same program has the same bill everywhere.
type bill struct {
	Format       string        `json:"bomFormat"`
	Spec         string        `json:"specVersion"`
	Version      int           `json:"version"`
	Metadata     metadata      `json:"metadata"`
	Components   []component   `json:"components"`
	Dependencies []dependsOn   `json:"dependencies"`
	Compositions []composition `json:"compositions"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Ref     string `json:"bom-ref"`
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	Hashes  []hash `json:"hashes,omitempty"`
	PURL    string `json:"purl"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type dependsOn struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// composition says how much is known: every module of the program is listed.
type composition struct {
	Aggregate  string   `json:"aggregate"`
	Assemblies []string `json:"assemblies"`
}

// list writes the bill of a binary: itself, and the modules that the linker says it is made of.
func (r *release) list(target, binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	self := module("application", info.Main.Path, r.version)
	self.Name = filepath.Base(binary)
	self.Hashes = sha(sum[:])
	libraries := []component{module("library", "std", info.GoVersion)}
	for _, dep := range info.Deps {
		if dep.Replace != nil {
			dep = dep.Replace
		}
		library := module("library", dep.Path, dep.Version)
		// The checksum of go.sum. It is one of the module's files, not of an archive of them.
		if encoded, ok := strings.CutPrefix(dep.Sum, "h1:"); ok {
			sum, err := base64.StdEncoding.DecodeString(encoded)
			if err != nil {
				return fmt.Errorf("the checksum of %s in %s: %w", dep.Path, binary, err)
			}
			library.Hashes = sha(sum)
		}
		libraries = append(libraries, library)
	}
	uses := dependsOn{Ref: self.Ref}
	for _, library := range libraries {
		uses.DependsOn = append(uses.DependsOn, library.Ref)
	}
	text, err := json.MarshalIndent(bill{
		Format: "CycloneDX", Spec: "1.6", Version: 1,
		Metadata: metadata{self}, Components: libraries, Dependencies: []dependsOn{uses},
		Compositions: []composition{{"complete", []string{self.Ref}}},
	}, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(target, append(text, '\n'), 0o644)
}

func module(kind, path, version string) component {
	purl := "pkg:golang/" + path + "@" + version
	return component{Ref: purl, Type: kind, Name: path, Version: version, PURL: purl}
}

func sha(sum []byte) []hash { return []hash{{"SHA-256", hex.EncodeToString(sum)}} }
