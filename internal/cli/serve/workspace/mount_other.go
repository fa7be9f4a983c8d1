//go:build !linux

package workspace

import "errors"

var errNoNamespaces = errors.New("this system has no mount namespaces")

// Mount fails, because only Linux has mount namespaces.
func Mount([]Workspace) error { return errNoNamespaces }

// TryUserNamespace fails, because only Linux has mount namespaces.
func TryUserNamespace([]Workspace) (environment string, err error) { return "", errNoNamespaces }
