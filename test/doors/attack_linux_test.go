package doors

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/peer"
	"execserver/internal/sys"
	"execserver/internal/testkit"
)

// attack runs this program as a client that the server must refuse. Its arguments are the
// way in which it connects, the address, the token or "", and a file that it makes if the
// server admits it.
func attack(args []string) {
	way, network, address, token, file := args[0], "tcp", args[1], args[2], args[3]
	if rest, hidden := strings.CutPrefix(way, "hidden "); hidden {
		way = rest
		hide()
	}
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	connect := func() net.Conn {
		var dialer net.Dialer
		dialer.SetMultipathTCP(strings.HasSuffix(way, "multipath"))
		conn, err := dialer.Dial(network, address)
		if err != nil {
			fmt.Println("no connection:", err)
			os.Exit(0)
		}
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
		return conn
	}
	request := upgrade(address, token)
	switch way {
	case "plain", "multipath":
		conn := connect()
		_, _ = io.WriteString(conn, request+work(file))
		report(conn, file)
	case "hidden": // whose descriptors other processes of the user may not look at, as sshd
		hide()
		conn := connect()
		_, _ = io.WriteString(conn, request+work(file))
		report(conn, file)
	case "lines":
		conn := connect()
		_, _ = io.WriteString(conn, strings.Join(messages(file), "\n")+"\n")
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			fmt.Printf("%.300s\n", lines.Text())
			if _, err := os.Stat(file); err == nil {
				return // the event of its end came after it
			}
		}
	case "daemon": // whose parent is gone
		again(args, nil)
		conn := connect()
		_, _ = io.WriteString(conn, request+work(file))
		report(conn, file)
	case "leave": // nobody holds the socket when the server looks
		conn := connect()
		_, _ = io.WriteString(conn, request+work(file))
		_ = conn.Close()
		fmt.Println("left")
	case "flight": // the socket is on its way between two processes when the server looks
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		conn := connect()
		socket, _ := conn.(*net.TCPConn).File()
		_ = conn.Close()
		_ = unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(int(socket.Fd())), nil, 0)
		// What is written goes out although the descriptor is closed at once.
		_, _ = socket.WriteString(request + work(file))
		_ = socket.Close()
		time.Sleep(300 * time.Millisecond)
		oob := make([]byte, 64)
		_, n, _, _, err := unix.Recvmsg(pair[1], make([]byte, 1), oob, 0)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		rights, _ := unix.ParseSocketControlMessage(oob[:n])
		fds, _ := unix.ParseUnixRights(&rights[0])
		back, _ := net.FileConn(os.NewFile(uintptr(fds[0]), "socket"))
		_ = back.SetDeadline(time.Now().Add(testkit.Patience))
		report(back, file)
	case "post", "post multipath": // when the server looks, the socket is on its way to a program that does not receive it, and its sender has ended
		conn := connect()
		receiver, err := net.Dial("unix", receiverOf(file))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		// The kernel sends this in a moment, when nobody holds the socket any more.
		_ = sys.OnDescriptor(conn, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_CORK, 1) })
		_, _ = io.WriteString(conn, request+work(file))
		err = sys.OnDescriptor(conn, func(fd int) error {
			return sys.OnDescriptor(receiver, func(to int) error { return unix.Sendmsg(to, []byte("x"), unix.UnixRights(fd), nil, 0) })
		})
		fmt.Println("posted", err)
	case "pass": // another process has inherited the socket
		again(args, func() *os.File {
			conn := connect()
			defer conn.Close()
			socket, _ := conn.(*net.TCPConn).File()
			return socket
		})
		conn, err := net.FileConn(os.NewFile(4, "socket"))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
		_, _ = io.WriteString(conn, request+work(file))
		report(conn, file)
	}
}

// receiverOf returns the path of the socket to which the attacker "post" passes its own.
func receiverOf(file string) string { return file + ".receiver" }

// judge judges connections of its own after their other ends have gone.
func judge() {
	check := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	address := func(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	for _, way := range []string{"closed", "behind"} {
		far, err := net.Dial("tcp", listener.Addr().String())
		check(err)
		near, err := listener.Accept()
		check(err)
		socket, err := peer.FindTCP(address(near.LocalAddr()), address(near.RemoteAddr()))
		check(err)
		if way == "behind" { // with two sockets that nobody has, on their way through each other
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			check(err)
			check(sys.OnDescriptor(far, func(fd int) error {
				return unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(fd, pair[0]), nil, 0)
			}))
			check(unix.Sendmsg(pair[1], []byte("x"), unix.UnixRights(pair[1]), nil, 0))
			_, _ = unix.Close(pair[0]), unix.Close(pair[1])
		}
		check(far.Close())
		_, err = new(peer.Checker).CheckTCP(socket)
		fmt.Printf("%s: %v\n", way, err)
	}
}

// hide keeps other processes of the user from looking at the descriptors of this one.
func hide() {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// again returns in a grandchild in a new session, after its parent has exited. The file
// that pass returns is descriptor 4 there. The first process waits for the grandchild.
func again(args []string, pass func() *os.File) {
	generation := len(args) - 4
	if generation == 2 {
		return
	}
	files := []*os.File{os.NewFile(3, "pipe"), os.NewFile(4, "socket")}
	var pipe *os.File
	if generation == 0 {
		pipe, files[0], _ = os.Pipe()
		files[1] = files[0]
		if pass != nil {
			files[1] = pass()
		}
	}
	cmd := exec.Command("/proc/self/exe", append(append([]string{"attack"}, args...), "again")...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdout, os.Stderr, files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
	}
	for _, file := range files {
		_ = file.Close()
	}
	if pipe != nil {
		_, _ = io.Copy(io.Discard, pipe) // which ends when all the others have
	}
	os.Exit(0)
}

// report prints the answer. A client that was admitted stays until its command has run,
// because the server would lose unread messages if the client left earlier.
func report(conn net.Conn, file string) {
	status, body := answer(conn)
	fmt.Println(status, body)
	for i := 0; status == 101 && i < 1000; i++ {
		if _, err := os.Stat(file); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// messages returns a handshake and the start of a command that makes a file.
func messages(file string) []string {
	return []string{
		`{"id":1,"method":"initialize","params":{"clientName":"attacker"}}`,
		`{"method":"initialized"}`,
		fmt.Sprintf(`{"id":2,"method":"process/start","params":{"processId":"p","argv":["/bin/touch",%q],"cwd":"file:///","env":{},"tty":false}}`, file),
	}
}

// work returns the messages as a client's frames, to be sent all at once.
func work(file string) string {
	var b []byte
	for _, message := range messages(file) {
		b = append(b, 0x81)
		if len(message) < 126 {
			b = append(b, 0x80|byte(len(message)))
		} else {
			b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(len(message)))
		}
		b = append(append(b, 0, 0, 0, 0), message...)
	}
	return string(b)
}
