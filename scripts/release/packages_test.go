package main

import (
	"testing"
	"time"
)

func TestPackageVersion(t *testing.T) {
	committed := time.Date(2026, 11, 23, 23, 9, 0, 0, time.UTC)
	for version, want := range map[string]string{
		"v1.2.3":              "1.2.3",
		"1.2.3":               "1.2.3",
		"v1.2.3-rc1":          "1.2.3~rc1",
		"v1.2.3-rc1-4-g0a1b2": "1.2.3~rc1.4.g0a1b2",
		"v1.2.3-4-g0a1b2":     "1.2.3+4.g0a1b2",
		"v1.2.3-dirty":        "1.2.3+dirty",
		"98dcca2":             "0~20261123.230900.98dcca2",
		"98dcca2-dirty":       "0~20261123.230900.98dcca2.dirty",
		"2026-11-23-98dcca2":  "0~20261123.230900.98dcca2",
	} {
		if got := packageVersion(version, committed); got != want {
			t.Errorf("packageVersion(%q) = %q, want %q", version, got, want)
		}
	}
}
