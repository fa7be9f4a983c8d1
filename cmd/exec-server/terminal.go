package main

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"execserver/client"
)

// console is the terminal of this program while a command elsewhere uses it: it is in raw
// mode, so that every key reaches the command.
type console struct {
	screen *screen
	fd     int

	mu    sync.Mutex
	saved *term.State // nil when the terminal is not in raw mode
}

func newConsole(screen *screen) *console {
	return &console{screen: screen, fd: int(os.Stdin.Fd())}
}

// raw puts the terminal into raw mode, also when another program has changed the mode
// while this one was stopped. The caller must have the terminal, and must call close on
// every way out.
func (c *console) raw() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	state, err := term.MakeRaw(c.fd)
	if err != nil {
		return fmt.Errorf("cannot take over the terminal: %w", err)
	}
	if c.saved == nil {
		c.saved = state
	}
	return nil
}

// close gives the terminal back as it was. It discards the keys that nobody has read:
// they were for the command, and the shell that reads next must not carry them out. It
// leaves keys and mode alone when another program has the terminal already. With fresh,
// what follows on the screen begins in a new line.
func (c *console) close(fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.saved == nil {
		return
	}
	c.screen.reset(fresh)
	if c.owned() {
		flushInput(c.fd)
		_ = term.Restore(c.fd, c.saved)
		flushInput(c.fd) // keys from between the two
	}
	c.saved = nil
}

// owned reports whether this program's job has the terminal.
func (c *console) owned() bool { return foreground(c.fd) }

// taken reports whether the terminal is in raw mode.
func (c *console) taken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.saved != nil
}

// closeOnPanic gives the terminal back before a panic of the calling goroutine ends the
// program. It must be deferred.
func (c *console) closeOnPanic() {
	if r := recover(); r != nil {
		c.close(true)
		panic(r)
	}
}

func (c *console) size() client.Size { return terminalSize(c.fd) }

func terminalSize(fd int) client.Size {
	cols, rows, err := term.GetSize(fd)
	if err != nil {
		return client.Size{}
	}
	return client.Size{Rows: uint16(rows), Cols: uint16(cols)}
}

// keys reads the terminal on a goroutine that ends with the program, or with the
// terminal: then the channel is closed. It reads only when somebody receives. While
// another job has the terminal, it waits.
func (c *console) keys() <-chan []byte {
	keys := make(chan []byte)
	go func() {
		defer c.closeOnPanic()
		defer close(keys)
		buf := make([]byte, 4096)
		for failed := false; ; {
			n, err := os.Stdin.Read(buf)
			if n > 0 {
				keys <- append([]byte(nil), buf[:n]...)
			}
			switch {
			case err == nil:
				failed = false
			case !c.owned():
				failed = false
				time.Sleep(backgroundTime)
			case errors.Is(err, os.ErrDeadlineExceeded):
			case errors.Is(err, syscall.EIO) && !failed:
				// So fails a read in the background, too. If this program was stopped just then, it
				// may have the terminal again by now: only the next read can tell.
				failed = true
				time.Sleep(backgroundTime)
			default:
				return
			}
		}
	}()
	return keys
}

// backgroundTime is how long this program goes on when it continues while another job has
// the terminal. A signal that is to end it comes with the one that has continued it.
const backgroundTime = 200 * time.Millisecond
