//go:build unix

package broker_test

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"execserver/fleet/internal/broker"
	"execserver/internal/testkit"
)

func TestData(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "data")
	first, err := broker.OpenData(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := broker.OpenData(dir); err == nil || !strings.Contains(err.Error(), "another gateway uses "+dir) {
		t.Errorf("a directory in use: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "join-token"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := broker.OpenData(dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "passwd"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := broker.OpenData(other); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("a directory with something else: %v", err)
	}
}

// TestAddressInUse wants to listen where another program does.
func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	known, err := broker.ReadMachines(testkit.Secret(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	for _, opts := range []broker.Options{
		{Listen: []string{"nats://" + l.Addr().String()}},
		{Listen: []string{"ws://" + l.Addr().String()}},
		{ClusterListen: "nats://" + l.Addr().String(), Cluster: "c", Name: "n"},
	} {
		opts.Data, opts.Machines, opts.Log = t.TempDir(), known, slog.New(slog.DiscardHandler)
		if b, err := broker.New(opts); err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("%v: %v", opts.Listen, err)
			if err == nil {
				b.Close()
			}
		}
	}
}
