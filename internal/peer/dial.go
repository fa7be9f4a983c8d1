package peer

import (
	"context"
	"net"
)

// DialServer connects to a server to which the caller is about to send secrets in clear, and
// checks who has accepted the connection ([CheckServer]), until ctx ends.
func DialServer(ctx context.Context, dialer *net.Dialer, network, address, named string) (net.Conn, error) {
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if err := CheckServer(ctx, conn, named); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}
