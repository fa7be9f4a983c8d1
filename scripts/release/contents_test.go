package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// TestBillOfMaterials lists what a program is made of: this test.
func TestBillOfMaterials(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "bill.json")
	if err := (&release{version: "v1.2.3"}).list(target, program); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	var got bill
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	self := got.Metadata.Component
	if self.Version != "v1.2.3" || self.Name != filepath.Base(program) || len(self.Hashes) != 1 {
		t.Errorf("the bill is of %+v, want %s v1.2.3 with a checksum", self, filepath.Base(program))
	}
	if !slices.ContainsFunc(got.Components, func(c component) bool {
		return c.Name == "std" && c.PURL == "pkg:golang/std@"+runtime.Version()
	}) {
		t.Errorf("the bill does not name the standard library of %s: %+v", runtime.Version(), got.Components)
	}
	if len(got.Dependencies) != 1 || len(got.Dependencies[0].DependsOn) != len(got.Components) {
		t.Errorf("the program does not depend on what it is made of: %+v", got.Dependencies)
	}
}
