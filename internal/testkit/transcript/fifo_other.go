//go:build !unix

package transcript

import "errors"

func makeFIFO(string) error { return errors.ErrUnsupported }
