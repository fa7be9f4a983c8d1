// Package terminal is the terminal of this program while a program elsewhere uses it: its mode
// and size, the keys that a person types, the screen, and the status line about the link.
package terminal

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

// Console is the terminal of this program while a command elsewhere uses it: it is in raw
// mode, so that every key reaches the command.
type Console struct {
	screen *Screen
	fd     int

	mu    sync.Mutex
	saved *term.State // nil when the terminal is not in raw mode
}

// NewConsole returns the console whose standard input this program has.
func NewConsole(screen *Screen) *Console {
	return &Console{screen: screen, fd: int(os.Stdin.Fd())}
}

// Raw puts the terminal into raw mode, also when another program has changed the mode
// while this one was stopped. The caller must have the terminal, and must call Close on
// every way out.
func (c *Console) Raw() error {
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

// Close gives the terminal back as it was. It discards the keys that nobody has read:
// they were for the command, and the shell that reads next must not carry them out. It
// leaves keys and mode alone when another program has the terminal already. With fresh,
// what follows on the screen begins in a new line.
func (c *Console) Close(fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.saved == nil {
		return
	}
	c.screen.reset(fresh)
	if c.Owned() {
		flushInput(c.fd)
		_ = term.Restore(c.fd, c.saved)
		flushInput(c.fd) // keys from between the two
	}
	c.saved = nil
}

// Owned reports whether this program's job has the terminal.
func (c *Console) Owned() bool { return foreground(c.fd) }

// Taken reports whether the terminal is in raw mode.
func (c *Console) Taken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.saved != nil
}

// CloseOnPanic gives the terminal back before a panic of the calling goroutine ends the
// program. It must be deferred.
func (c *Console) CloseOnPanic() {
	if r := recover(); r != nil {
		c.Close(true)
		panic(r)
	}
}

// Size returns the size of the console.
func (c *Console) Size() client.Size { return Size(c.fd) }

// Size returns the size of a terminal, or the zero Size if fd is none.
func Size(fd int) client.Size {
	cols, rows, err := term.GetSize(fd)
	if err != nil {
		return client.Size{}
	}
	return client.Size{Rows: uint16(rows), Cols: uint16(cols)}
}

// Keys reads the terminal on a goroutine that ends with the program, or with the
// terminal: then the channel is closed. It reads only when somebody receives. While
// another job has the terminal, it waits.
func (c *Console) Keys() <-chan []byte {
	keys := make(chan []byte)
	go func() {
		defer c.CloseOnPanic()
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
			case !c.Owned():
				failed = false
				time.Sleep(BackgroundTime)
			case errors.Is(err, os.ErrDeadlineExceeded):
			case errors.Is(err, syscall.EIO) && !failed:
				// So fails a read in the background, too. If this program was stopped just then, it
				// may have the terminal again by now: only the next read can tell.
				failed = true
				time.Sleep(BackgroundTime)
			default:
				return
			}
		}
	}()
	return keys
}

// BackgroundTime is how long this program goes on when it continues while another job has
// the terminal. A signal that is to end it comes with the one that has continued it.
const BackgroundTime = 200 * time.Millisecond
