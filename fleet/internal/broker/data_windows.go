package broker

import (
	"os"
	"path/filepath"
)

// OpenData makes a directory, if there is none. Other gateways could use it, too: this system
// has no lock for that here.
func OpenData(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(dir, "gateway.lock"), os.O_RDWR|os.O_CREATE, 0o600)
}
