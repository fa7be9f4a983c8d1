package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// predecessor is the file in which a machine notes its instance, locked while it lives. A machine
// that is killed leaves its name to the sessions that it had, for half an hour. The next one on
// the same host finds the file unlocked, and so knows that they are gone.
//
// A copy of the file proves nothing: the machine that it was copied from may be alive. So the
// file must be the one that was written, and this the boot in which that happened. After another
// boot of the same host nothing runs that ran before; a clone of a virtual machine boots, too,
// but with other network cards.
type predecessor struct {
	file     *os.File
	host     host
	instance string // of the machine that has ended; "" for none
}

// host tells a boot, and a host, from others.
type host struct {
	boot     string // differs at each boot
	hardware string // addresses of network cards; "" if it has none
}

// noted is what the file says.
type noted struct {
	Instance      string
	Boot          string
	Hardware      string
	Device, Inode uint64
}

// maxNoted bounds the file.
const maxNoted = 16 << 10

func thisHost() host {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without it, nothing is proven
	cards, _ := filepath.Glob("/sys/class/net/*/device")      // bridges and the like have none
	var addresses []string
	for _, card := range cards {
		address, _ := os.ReadFile(filepath.Join(filepath.Dir(card), "address"))
		if text := strings.TrimSpace(string(address)); text != "" {
			addresses = append(addresses, text)
		}
	}
	slices.Sort(addresses)
	return host{strings.TrimSpace(string(boot)), strings.Join(addresses, " ")}
}

// stateHome returns the directory for the state of programs.
func stateHome() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".local", "state"), err
}

// findPredecessor opens the file of a machine of this name in the fleet at these URLs, below the
// directory for state. Without the file the machine may have to wait for its name.
func findPredecessor(state, name string, urls []string, this host) (*predecessor, error) {
	dir := filepath.Join(state, "exec-fleet", "machines")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	fleet := sha256.Sum256([]byte(strings.Join(urls, " ")))
	path := filepath.Join(dir, fmt.Sprintf("%s.%x", name, fleet[:8]))
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	p := &predecessor{file: file, host: this}
	text, err := p.read()
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	was, now := new(noted), p.note("")
	if json.Unmarshal(text, was) != nil {
		return p, nil // it is empty, or was cut off with the power
	}
	sameBoot := was.Boot != "" && was.Boot == now.Boot && was.Device == now.Device
	sameHost := was.Hardware != "" && was.Hardware == now.Hardware
	if was.Inode == now.Inode && (sameBoot || sameHost) {
		p.instance = was.Instance
	}
	return p, nil
}

// read locks the file and reads it. The lock ends with the program.
func (p *predecessor) read() ([]byte, error) {
	info, err := p.file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, syscall.EINVAL
	}
	if err := syscall.Flock(int(p.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(p.file, maxNoted))
}

func (p *predecessor) note(instance string) *noted {
	n := &noted{Instance: instance, Boot: p.host.boot, Hardware: p.host.hardware}
	if info, err := p.file.Stat(); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			n.Device, n.Inode = st.Dev, st.Ino
		}
	}
	return n
}

// write notes the instance of this machine.
func (p *predecessor) write(instance string) error {
	text, err := json.Marshal(p.note(instance))
	if err != nil {
		return err
	}
	if err := p.file.Truncate(0); err != nil {
		return err
	}
	if _, err := p.file.WriteAt(bytes.TrimSpace(text), 0); err != nil {
		return err
	}
	return p.file.Sync()
}
