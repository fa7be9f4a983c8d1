package process

import (
	"errors"
	"os"
	"syscall"
)

// child is the result of spawn: the leader, and our ends of its streams.
type child struct {
	pid   int // of the leader
	group int // of the program and its group; pid, unless a launcher is the leader
	exit  exitNotice
	confined
	master *os.File // of the terminal, or nil
	// terminal is the other side of master, or nil. While it is open, master has no end: a
	// program may close its terminal and open it again.
	terminal *os.File
	stdin    *os.File // the master, a pipe, or nil
	outputs  []namedFile
}

type namedFile struct {
	name string
	file *os.File
}

// execReason explains what the errno alone does not. The program was found, so a missing
// file is its interpreter.
func execReason(c command, err error) string {
	if errors.Is(err, syscall.ENOENT) {
		return "the interpreter or loader that " + c.path + " needs"
	}
	return "execute " + c.path
}

// makeStreams makes both ends of the child's streams; theirs are descriptors 0, 1 and 2.
// The caller must close the files even if there is an error. For a terminal they are ours.
func makeStreams(spec Spec) (ours *child, theirs []*os.File, err error) {
	ours = &child{}
	if spec.TTY {
		master, slave, err := openTerminal(spec.Size)
		if err != nil {
			return ours, nil, err
		}
		ours.master, ours.terminal, ours.stdin = master, slave, master
		ours.outputs = []namedFile{{"pty", master}}
		return ours, []*os.File{slave, slave, slave}, nil
	}
	var in *os.File
	if spec.PipeStdin {
		in, ours.stdin, err = inputPipe()
	} else {
		in, err = openNull()
	}
	if err != nil {
		return ours, nil, err
	}
	theirs = append(theirs, in)
	for _, name := range []string{"stdout", "stderr"} {
		r, w, err := outputPipe()
		if err != nil {
			return ours, theirs, err
		}
		theirs = append(theirs, w)
		ours.outputs = append(ours.outputs, namedFile{name, r})
	}
	return ours, theirs, nil
}

// closeTheirs closes the child's ends of the streams, except for that of a terminal.
func (c *child) closeTheirs(theirs []*os.File) {
	for _, f := range theirs {
		if f != c.terminal {
			_ = f.Close()
		}
	}
}

// closeTerminal lets the output of the terminal end with its last holder. It does nothing
// the second time.
func (c *child) closeTerminal() {
	if c.terminal != nil {
		_ = c.terminal.Close()
	}
}

// close closes our ends of the streams.
func (c *child) close() {
	c.closeTerminal()
	if c.stdin != nil {
		_ = c.stdin.Close()
	}
	for _, out := range c.outputs {
		_ = out.file.Close()
	}
}
