package peer

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// readTable finds a socket in the tables of all sockets. The more sockets there are, the
// longer it takes.
func readTable(local, remote netip.AddrPort) (Socket, error) {
	tables := []string{"/proc/net/tcp6"}
	if remote.Addr().Is4() { // an IPv6 socket may have an IPv4 address as well
		tables = []string{"/proc/net/tcp", "/proc/net/tcp6"}
	}
	for i, table := range tables {
		found, err := searchTable(table, local, remote)
		if err == nil || err != ErrNotFound && i == 0 {
			return found, err
		}
	}
	return Socket{}, ErrNotFound
}

func searchTable(path string, local, remote netip.AddrPort) (Socket, error) {
	table, err := os.Open(path)
	if err != nil {
		return Socket{}, err
	}
	defer table.Close()
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || !isEnd(fields[1], remote) || !isEnd(fields[2], local) {
			continue
		}
		uid, err := strconv.Atoi(fields[7])
		if err != nil {
			return Socket{}, fmt.Errorf("%s has a line that cannot be understood: %q", path, lines.Text())
		}
		inode, err := strconv.ParseUint(fields[9], 10, 64)
		if err != nil {
			return Socket{}, fmt.Errorf("%s has a line that cannot be understood: %q", path, lines.Text())
		}
		return Socket{UID: uid, Inode: inode}, nil
	}
	if err := lines.Err(); err != nil {
		return Socket{}, err
	}
	return Socket{}, ErrNotFound
}

// isEnd reports whether text, an address as the tables spell it, is a: 32-bit words in
// the machine's byte order, and a port.
func isEnd(text string, a netip.AddrPort) bool {
	host, port, _ := strings.Cut(text, ":")
	if n, err := strconv.ParseUint(port, 16, 16); err != nil || uint16(n) != a.Port() {
		return false
	}
	b, err := hex.DecodeString(host)
	if err != nil || len(b)%4 != 0 {
		return false
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	address, ok := netip.AddrFromSlice(b)
	return ok && address.Unmap() == a.Addr().WithZone("")
}
