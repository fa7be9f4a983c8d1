// Package term connects the local terminal with a remote program: the mode and size of the
// terminal, the keys that a person types, the screen, and the status line about the link.
package term

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

// Console is the local terminal while a remote command uses it. It is in raw mode, so that the
// command receives every key.
type Console struct {
	screen *Screen
	fd     int

	mu    sync.Mutex
	saved *term.State // nil when the terminal is not in raw mode
}

// NewConsole returns the console on standard input.
func NewConsole(screen *Screen) *Console {
	return &Console{screen: screen, fd: int(os.Stdin.Fd())}
}

// Raw puts the terminal into raw mode, even if another program has changed the mode while this
// one was stopped. The caller must own the terminal, and must call Close in every case.
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

// Close restores the terminal. It discards unread keys: they were for the command, and the shell
// that reads next must not execute them. It changes nothing if another program owns the terminal.
// With fresh, the following output starts on a new line.
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

// CloseOnPanic restores the terminal before a panic of the calling goroutine ends the program. It
// must be deferred.
func (c *Console) CloseOnPanic() {
	if r := recover(); r != nil {
		c.Close(true)
		panic(r)
	}
}

// Size returns the size of the console.
func (c *Console) Size() client.Size { return Size(c.fd) }

// Size returns the size of a terminal, or the zero Size if fd is not a terminal.
func Size(fd int) client.Size {
	cols, rows, err := term.GetSize(fd)
	if err != nil {
		return client.Size{}
	}
	return client.Size{Rows: uint16(rows), Cols: uint16(cols)}
}

// Keys reads the terminal in a goroutine that ends with the program. The channel is closed when
// the terminal is gone. The goroutine reads only while a receiver waits, and pauses while another
// job owns the terminal.
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
				// A read in the background fails with EIO, too. If this program was stopped just
				// then, it may own the terminal again by now, so only a second failure counts.
				failed = true
				time.Sleep(BackgroundTime)
			default:
				return
			}
		}
	}()
	return keys
}

// BackgroundTime is how long this program runs after it continues while another job owns the
// terminal. It may have been continued in order to end by a signal.
const BackgroundTime = 200 * time.Millisecond
