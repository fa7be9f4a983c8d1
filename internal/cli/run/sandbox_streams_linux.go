package run

import (
	"fmt"
	"io"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"execserver/internal/sandbox/launcher"
)

// streams are the standard streams of a command in a sandbox. A program can reopen a file through
// its descriptor, with more rights than the descriptor has. So the command gets pipes instead of
// files, and this program copies. The same holds for sockets that reach more than their peer.
// Terminals, other sockets and input pipes are passed on, because bytes read ahead from a pipe
// would be lost after the command.
type streams struct {
	files  [3]*os.File // for the command
	input  *relay      // nil for none
	output []*relay
}

// relay copies between a file and a pipe.
type relay struct {
	file      *os.File
	pipe, end *os.File // end is the command's
	unwritten int64    // bytes read but not written
	again     bool     // the file is seekable
	done      chan struct{}
}

// names of the standard streams for messages.
var streamNames = [3]string{"standard input", "standard output", "standard error"}

// newStreams makes streams from those of this program.
func newStreams() (*streams, error) {
	s := &streams{files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}}
	var output unix.Stat_t // standard output
	for fd, file := range s.files {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			continue // it is closed, and stays so
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			s.close()
			return nil, fmt.Errorf("%s is a directory, through which the command could reach everything around it; redirect it to a file", streamNames[fd])
		}
		if !copied(fd, st.Mode) {
			continue
		}
		if fd == 2 && len(s.output) > 0 && output.Dev == st.Dev && output.Ino == st.Ino && openFlags(1) == openFlags(2) {
			s.files[2] = s.files[1] // the order of writes to both stays
			continue
		}
		r, err := newRelay(fd, file)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("make a pipe for %s: %w", streamNames[fd], err)
		}
		s.files[fd] = r.end
		switch fd {
		case 0:
			s.input, r.again = r, st.Mode&unix.S_IFMT == unix.S_IFREG
		case 1:
			output = st
			fallthrough
		default:
			s.output = append(s.output, r)
		}
	}
	return s, nil
}

func openFlags(fd int) int {
	flags, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	return flags
}

// copied reports whether a stream is copied through a pipe.
func copied(fd int, mode uint32) bool {
	switch mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return !launcher.ReachesPeerAlone(fd)
	case unix.S_IFCHR:
		return !harmless(fd)
	case unix.S_IFIFO:
		return fd != 0 || named(fd)
	}
	return true
}

// harmless reports whether a device is a terminal, or one that every sandbox has.
func harmless(fd int) bool {
	if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
		return true
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || unix.Major(st.Rdev) != 1 {
		return false
	}
	switch unix.Minor(st.Rdev) {
	case 3, 5, 7, 8, 9: // null, zero, full, random, urandom
		return true
	}
	return false
}

// named reports whether a pipe has a name in a file system.
func named(fd int) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) != nil || fs.Type != unix.PIPEFS_MAGIC
}

func newRelay(fd int, file *os.File) (*relay, error) {
	reading, writing, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if fd == 0 {
		return &relay{file: file, pipe: writing, end: reading, done: make(chan struct{})}, nil
	}
	// Use a descriptor other than 1 and 2, because the runtime ends the program when it cannot
	// write to those.
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		_, _ = reading.Close(), writing.Close()
		return nil, err
	}
	return &relay{file: os.NewFile(uintptr(other), file.Name()), pipe: reading, end: writing, done: make(chan struct{})}, nil
}

// attach connects the streams with a command and starts to copy.
func (s *streams) attach(cmd *exec.Cmd) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.files[0], s.files[1], s.files[2]
	if s.input != nil {
		go s.input.read()
	}
	for _, r := range s.output {
		go r.write()
	}
}

// read copies the file to the command.
func (r *relay) read() {
	defer close(r.done)
	buffer := make([]byte, 32<<10)
	for {
		n, err := r.file.Read(buffer)
		if n > 0 {
			written, writeErr := r.pipe.Write(buffer[:n])
			if r.unwritten = int64(n - written); writeErr != nil {
				return
			}
		}
		if err != nil {
			_ = r.pipe.Close() // the end of the file for the command
			return
		}
	}
}

// write copies the output of the command to the file. If that fails, the writes of the command
// fail too.
func (r *relay) write() {
	defer close(r.done)
	_, _ = io.Copy(r.file, struct{ io.Reader }{r.pipe})
	_ = r.pipe.Close()
}

// finish ends the streams after the command. It writes all output, and seeks back to the first
// input that the command did not read.
func (s *streams) finish() {
	for _, r := range s.output {
		_ = r.end.Close()
		<-r.done
		_ = r.file.Close()
	}
	if r := s.input; r != nil {
		_ = r.pipe.Close() // also ends a waiting write
		if !r.again {
			return // a read may block forever
		}
		<-r.done
		left, err := unix.IoctlGetInt(int(r.end.Fd()), unix.TIOCINQ)
		if err == nil {
			_, _ = r.file.Seek(-int64(left)-r.unwritten, io.SeekCurrent)
		}
		_ = r.end.Close()
	}
}

// close closes the pipes of a command that did not start.
func (s *streams) close() {
	for _, r := range append(s.output, s.input) {
		if r != nil {
			_, _ = r.pipe.Close(), r.end.Close()
		}
	}
}
