//go:build !linux

package workspace

import "errors"

var errNoNamespaces = errors.New("this system has no mount namespaces")

// Mount fails: see the version for Linux.
func Mount([]Workspace) error { return errNoNamespaces }

// TryUserNamespace fails: see the version for Linux.
func TryUserNamespace([]Workspace) (environment string, err error) { return "", errNoNamespaces }
