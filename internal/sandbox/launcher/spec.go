// Package launcher runs this program between a server and a confined command. The launcher
// starts in new namespaces, mounts the command's view of the files, drops all privileges, and
// starts the command or replaces itself with it.
//
// The program becomes a launcher in [Run], at the top of its main function, when its only
// argument is [Argument] and a server has handed it the two descriptors. A launcher must
// be quick and small, so the package imports little. Its environment is empty: it reads
// its work from [SpecFD] and reports through [ControlFD].
package launcher

import (
	"encoding/binary"
	"errors"
	"strings"
	"syscall"

	"execserver/internal/seccomp"
)

// Argument makes this program a launcher.
const Argument = "@sandbox-launcher"

// The descriptors of a launcher in addition to the streams of its command: a file with the
// Spec, and a socket. When the other end of the socket closes, the launcher and all processes
// in its PID namespace end.
const (
	SpecFD    = 3
	ControlFD = 4
)

// Base is the content of the command's root directory.
type Base byte

// The values of Base.
const (
	BaseNone     Base = iota // nothing is mounted: the command uses the caller's mount namespace
	BaseReadOnly             // everything, read-only
	BaseWritable             // everything, writable
	BaseEmpty                // only what is mounted there
)

// MountKind is the effect of a Mount on its path.
type MountKind byte

// The values of MountKind.
const (
	MountReadOnly MountKind = iota + 1
	MountWritable
	MountHollow // a directory that holds only other mounts and links
	MountHidden // an empty directory or file without permissions
	MountLink   // a symbolic link that cannot be replaced
)

// Mount changes a path and everything below it. Device and Inode identify the file for
// which it was planned.
type Mount struct {
	Path          string
	Kind          MountKind
	Device, Inode uint64
	Directory     bool
	// Optional skips the mount if the path is another file by now: another user owns the
	// name, and must not keep the command from starting. An optional MountHidden or
	// MountHollow is skipped if the file has disappeared.
	Optional bool
}

// InProc reports whether a mount hides a file in the new /proc.
func (m Mount) InProc() bool {
	return m.Kind == MountHidden && (m.Path == "/proc" || strings.HasPrefix(m.Path, "/proc/"))
}

// Link is a symbolic link to create in an empty base or in a hollow directory.
type Link struct{ Path, Target string }

// Spec describes the work of a launcher. Its strings must not contain NUL.
type Spec struct {
	Base   Base
	Mounts []Mount // parents before their content
	Links  []Link
	// Check makes the launcher check mounts that another program has made.
	Check bool

	OwnUsers bool // the launcher is in a user namespace that only the command uses

	// Network limits the sockets of the command. With NetworkOwn, the launcher is in its own
	// network namespace.
	Network      seccomp.Network
	KeepRights   bool     // keep capabilities: only the network is confined
	Landlock     []string // writable paths, when Landlock alone confines files
	LandlockRead []string // readable paths
	LandlockHide []string // unreadable paths within LandlockRead, unless they are in Landlock
	LandlockOnly bool

	// Exec makes the launcher replace itself with the command (execve). Otherwise it stays
	// the command's parent, reaps orphans, and forwards signals.
	Exec     bool
	Session  bool // the command leads a session of its own
	Terminal bool // its controlling terminal is its standard input
	Helper   bool // the command is this program, which gets the Spec; see Require

	Processes   uint64 // limit for the user inside; 0 means none
	Descriptors uint64 // soft limit for each process, if the hard one allows it; 0 means the hard one

	Program string // as for execvp; the launcher finds it inside
	Argv    []string
	Env     []string
	Dir     string
	// DirDevice and DirInode identify Dir; zeros accept any directory.
	DirDevice, DirInode uint64
}

// Append appends the encoding of a Spec.
func (s *Spec) Append(b []byte) []byte {
	b = append(b, byte(s.Base), byte(s.Network), flags(s.Check, s.KeepRights, s.LandlockOnly, s.Exec, s.Session, s.Terminal, s.OwnUsers), flags(s.Helper))
	b = binary.AppendUvarint(b, uint64(len(s.Mounts)))
	for _, m := range s.Mounts {
		b = append(b, byte(m.Kind), flags(m.Directory, m.Optional))
		b = appendText(b, m.Path)
		b = binary.AppendUvarint(b, m.Device)
		b = binary.AppendUvarint(b, m.Inode)
	}
	b = binary.AppendUvarint(b, uint64(len(s.Links)))
	for _, l := range s.Links {
		b = appendText(appendText(b, l.Path), l.Target)
	}
	for _, list := range [][]string{s.Landlock, s.LandlockRead, s.LandlockHide, s.Argv, s.Env} {
		b = binary.AppendUvarint(b, uint64(len(list)))
		for _, text := range list {
			b = appendText(b, text)
		}
	}
	for _, number := range []uint64{s.Processes, s.Descriptors, s.DirDevice, s.DirInode} {
		b = binary.AppendUvarint(b, number)
	}
	return appendText(appendText(b, s.Program), s.Dir)
}

func flags(set ...bool) (b byte) {
	for i, bit := range set {
		if bit {
			b |= 1 << i
		}
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Parse decodes the result of Append.
func Parse(b []byte) (*Spec, error) {
	d := decoder{rest: b}
	s := &Spec{Base: Base(d.byte()), Network: seccomp.Network(d.byte())}
	bits := d.byte()
	for i, flag := range []*bool{&s.Check, &s.KeepRights, &s.LandlockOnly, &s.Exec, &s.Session, &s.Terminal, &s.OwnUsers} {
		*flag = bits&(1<<i) != 0
	}
	s.Helper = d.byte()&1 != 0
	for range d.count() {
		m := Mount{Kind: MountKind(d.byte())}
		bits := d.byte()
		m.Directory, m.Optional = bits&1 != 0, bits&2 != 0
		m.Path, m.Device, m.Inode = d.text(), d.number(), d.number()
		s.Mounts = append(s.Mounts, m)
	}
	for range d.count() {
		s.Links = append(s.Links, Link{d.text(), d.text()})
	}
	for _, list := range []*[]string{&s.Landlock, &s.LandlockRead, &s.LandlockHide, &s.Argv, &s.Env} {
		for range d.count() {
			*list = append(*list, d.text())
		}
	}
	s.Processes, s.Descriptors, s.DirDevice, s.DirInode = d.number(), d.number(), d.number(), d.number()
	s.Program, s.Dir = d.text(), d.text()
	if d.failed || len(d.rest) > 0 || len(s.Argv) == 0 {
		return nil, errors.New("the description of the command cannot be understood")
	}
	return s, nil
}

// decoder reads from the front of rest, and remembers a failure.
type decoder struct {
	rest   []byte
	failed bool
}

func (d *decoder) number() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.failed, d.rest = true, nil
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// count reads a number of elements, each of which takes at least a byte.
func (d *decoder) count() int {
	n := d.number()
	if n > uint64(len(d.rest)) {
		d.failed, d.rest = true, nil
		return 0
	}
	return int(n)
}

func (d *decoder) byte() byte {
	if len(d.rest) == 0 {
		d.failed = true
		return 0
	}
	b := d.rest[0]
	d.rest = d.rest[1:]
	return b
}

func (d *decoder) text() string {
	n := d.count()
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}

// Begin is the message on the control socket that the launcher's ids have been mapped.
const Begin = 'B'

// Signal is the first byte of a message on the control socket. The launcher sends the signal
// whose number is the second byte to the command's process group, or only to the command if
// it shares the launcher's group.
const Signal = 'K'

// The kinds of reports of a launcher. Each report is one packet.
const (
	ReportFailed  = 'F' // Stage, errno, and what was attempted
	ReportStarted = 'S' // with a pidfd of the command
	ReportEnded   = 'E' // the command's wait status
)

// Stage is the step that failed.
type Stage byte

// The values of Stage.
const (
	StageConfine Stage = iota + 1 // the confinement
	StageDir                      // the working directory
	StageFind                     // the program, which was not found
	StageExec                     // the execution of the program at the path What
	StageChanged                  // the confinement: a file changed after the plan was made
)

// Failure is the error of a command that did not start.
type Failure struct {
	Stage Stage
	What  string        // what was attempted
	Errno syscall.Errno // 0 if What describes the error
}

func (f *Failure) Error() string {
	if f.Errno == 0 {
		return f.What
	}
	return f.What + ": " + f.Errno.Error()
}

// Unwrap returns the errno.
func (f *Failure) Unwrap() error {
	if f.Errno == 0 {
		return nil
	}
	return f.Errno
}

func (f *Failure) append(b []byte) []byte {
	b = append(b, ReportFailed, byte(f.Stage))
	b = binary.LittleEndian.AppendUint32(b, uint32(f.Errno))
	return append(b, f.What...)
}

// ParseFailure decodes a report of the kind ReportFailed.
func ParseFailure(b []byte) *Failure {
	if len(b) < 6 {
		return &Failure{Stage: StageConfine, What: "the launcher's report is too short"}
	}
	return &Failure{Stage(b[1]), string(b[6:]), syscall.Errno(binary.LittleEndian.Uint32(b[2:]))}
}

// ParseEnded decodes a report of the kind ReportEnded.
func ParseEnded(b []byte) (status uint32, ok bool) {
	if len(b) != 5 {
		return 0, false
	}
	return binary.LittleEndian.Uint32(b[1:]), true
}
