package sandbox_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// The foreign programs try to make an Internet socket, and exit with 0 if they succeed and
// with 1 otherwise. The code of the first two is the same in 32 and 64 bits.
var (
	bySocket = []byte{
		0xb8, 0x67, 1, 0, 0, // mov eax, 359 (socket of i386)
		0xbb, 2, 0, 0, 0, // mov ebx, AF_INET
		0xb9, 1, 0, 0, 0, // mov ecx, SOCK_STREAM
		0x31, 0xd2, // xor edx, edx
		0xcd, 0x80, // int 0x80
		0x89, 0xc3, // mov ebx, eax
		0xc1, 0xeb, 31, // shr ebx, 31
		0xb8, 1, 0, 0, 0, // mov eax, 1 (exit)
		0xcd, 0x80, // int 0x80
	}
	bySocketcall = []byte{
		0x6a, 0, 0x6a, 1, 0x6a, 2, // push 0; push SOCK_STREAM; push AF_INET
		0xb8, 102, 0, 0, 0, // mov eax, 102 (socketcall)
		0xbb, 1, 0, 0, 0, // mov ebx, 1 (SYS_SOCKET)
		0x89, 0xe1, // mov ecx, esp
		0xcd, 0x80, // int 0x80
		0x89, 0xc3, // mov ebx, eax
		0xc1, 0xeb, 31, // shr ebx, 31
		0xb8, 1, 0, 0, 0, // mov eax, 1 (exit)
		0xcd, 0x80, // int 0x80
	}
	byX32 = []byte{
		0xb8, 41, 0, 0, 0x40, // mov eax, 0x40000000 | 41 (socket of x32)
		0xbf, 2, 0, 0, 0, // mov edi, AF_INET
		0xbe, 1, 0, 0, 0, // mov esi, SOCK_STREAM
		0x31, 0xd2, // xor edx, edx
		0x0f, 0x05, // syscall
		0x89, 0xc7, // mov edi, eax
		0xc1, 0xef, 31, // shr edi, 31
		0xb8, 60, 0, 0, 0, // mov eax, 60 (exit)
		0x0f, 0x05, // syscall
	}
)

// static returns an executable file that holds only code.
func static(bits int, code []byte) []byte {
	const address = 0x400000
	order, long := binary.LittleEndian, bits == 64
	word := func(b []byte, v uint64) []byte { // of the size of an address
		if long {
			return order.AppendUint64(b, v)
		}
		return order.AppendUint32(b, uint32(v))
	}
	class, machine, header, program := byte(1), uint16(3), uint64(52), uint64(32) // EM_386
	if long {
		class, machine, header, program = 2, 62, 64, 56 // EM_X86_64
	}
	b := append([]byte("\x7fELF"), class, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = order.AppendUint32(order.AppendUint16(order.AppendUint16(b, 2), machine), 1) // ET_EXEC
	b = word(word(word(b, address+header+program), header), 0)
	b = order.AppendUint32(b, 0)
	for _, v := range []uint64{header, program, 1, 0, 0, 0} {
		b = order.AppendUint16(b, uint16(v))
	}
	size := header + program + uint64(len(code))
	b = order.AppendUint32(b, 1) // PT_LOAD
	if long {
		b = order.AppendUint32(b, 5) // to be read and executed
	}
	b = word(word(word(word(word(b, 0), address), address), size), size)
	if !long {
		b = order.AppendUint32(b, 5)
	}
	return append(word(b, 4096), code...)
}

// TestForeignPrograms checks that a system call of another architecture ends the program
// (row 26).
func TestForeignPrograms(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("only amd64 has the calls of another architecture")
	}
	everywhere(t, func(t *testing.T, m *machine) {
		for name, program := range map[string][]byte{
			"i386 socketcall": static(32, bySocketcall), "i386 socket": static(32, bySocket),
			"int 0x80 in 64 bits": static(64, bySocket), "x32": static(64, byX32),
		} {
			t.Run(name, func(t *testing.T) {
				file := filepath.Join(m.ws, strings.ReplaceAll(name, " ", "-"))
				m.executable(file, program)
				// Without a sandbox it does what it is made for.
				control := exec.Command(file).Run()
				exit, _ := errors.AsType[*exec.ExitError](control)
				without := false // the kernel ends the program before a filter is asked
				switch {
				case exit != nil && (exit.ExitCode() == 1 && name == "x32" || exit.Sys().(syscall.WaitStatus).Signal() == unix.SIGSEGV):
					// The kernel has no such calls; they must end the program nevertheless.
					without = exit.ExitCode() != 1
				case errors.Is(control, unix.ENOEXEC):
					t.Skip("the kernel executes no 32-bit programs")
				case control != nil:
					t.Fatalf("without a sandbox: %v", control)
				}
				for network, tty := range map[string]bool{"restricted": false, "enabled": true} {
					sandbox := m.workspaceWrite()
					sandbox["permissions"].(object)["network"] = network
					p := m.run(command{argv: []string{file}, sandbox: sandbox, tty: tty})
					if without && p.exit.Signal == "SIGSEGV" {
						continue
					}
					if p.exit.ExitCode != 159 || p.exit.Signal != "SIGSYS" || !p.exit.SandboxDenied {
						t.Errorf("network %s, tty %v: %+v, want 159, SIGSYS, denied", network, tty, p.exit)
					}
				}
			})
		}
	})
}

// executable makes a program that the machine's user owns.
func (m *machine) executable(path string, text []byte) {
	m.t.Helper()
	testkit.WriteProgram(m.t, path, text)
	m.own(path)
}

// identity prints the user and the capabilities of the program.
func identity() {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	fmt.Println("user", os.Geteuid(), "capabilities", data[0].Permitted|data[0].Effective, data[1].Permitted, err)
}

// TestSetUserID executes set-user-ID programs and programs with file capabilities
// (row 32).
func TestSetUserID(t *testing.T) {
	testkit.System(t, testkit.Root)
	everywhere(t, func(t *testing.T, m *machine) {
		var fs unix.Statfs_t
		if m.must(unix.Statfs(m.base, &fs)); fs.Flags&unix.ST_NOSUID != 0 {
			t.Skip("such programs mean nothing where " + m.base + " is mounted")
		}
		self, err := os.ReadFile("/proc/self/exe")
		m.must(err)
		other := 0
		if m.user.uid == 0 {
			other = 61234
		}
		setUser, capable := filepath.Join(m.base, "set-user"), filepath.Join(m.base, "capable")
		m.executable(setUser, self)
		m.must(os.Chown(setUser, other, other))
		m.must(os.Chmod(setUser, 0o755|os.ModeSetuid))
		m.executable(capable, self)
		// VFS_CAP_REVISION_2, effective; NET_RAW may be had and inherited.
		attribute := binary.LittleEndian.AppendUint32(nil, 0x02000001)
		attribute = append(binary.LittleEndian.AppendUint32(attribute, 1<<unix.CAP_NET_RAW), make([]byte, 12)...)
		m.must(unix.Setxattr(capable, "security.capability", attribute, 0))

		say := func(program string, sandbox any, tty bool) string {
			p := m.run(command{argv: []string{program, "identity"}, sandbox: sandbox, tty: tty})
			return strings.TrimSpace(m.written(p))
		}
		if got := say(setUser, nil, false); !strings.HasPrefix(got, fmt.Sprintf("user %d ", other)) {
			t.Fatalf("without a sandbox: %s, want user %d", got, other)
		}
		if got := say(capable, nil, false); m.user.uid != 0 && !strings.Contains(got, fmt.Sprint("capabilities ", 1<<unix.CAP_NET_RAW)) {
			t.Fatalf("without a sandbox: %s", got)
		}
		want := fmt.Sprintf("user %d capabilities 0 0 <nil>", m.user.uid)
		for _, program := range []string{setUser, capable} {
			for _, tty := range []bool{false, true} {
				sandbox := m.workspaceWrite()
				if tty {
					sandbox = m.workspaceWrite(at(m.base, "write"))
				}
				if got := say(program, sandbox, tty); got != want {
					t.Errorf("%s, tty %v: %s, want %s", filepath.Base(program), tty, got, want)
				}
			}
		}
	})
}

// TestDescriptors checks that a command inherits none of the descriptors that the server
// inherited, such as one of the root directory (row 31). Every machine in these tests has
// such descriptors.
func TestDescriptors(t *testing.T) {
	everywhere(t, func(t *testing.T, m *machine) {
		var all []*running
		for i := range 12 {
			p, _, err := m.begin(command{argv: []string{"/bin/sh", "-c", "ls /proc/$$/fd"}, sandbox: m.workspaceWrite(), tty: i%3 == 0})
			m.must(err)
			all = append(all, p)
		}
		for _, p := range all {
			m.await(p)
			if got := strings.Fields(m.written(p)); !slices.Equal(got, []string{"0", "1", "2"}) {
				t.Errorf("the command has the descriptors %q", got)
			}
		}
	})
}
