package sandbox

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bounds of journals. What is confined to a directory that holds the state
// directory may have put anything there.
const (
	maxJournals     = 1_000
	maxJournalLines = 10_000
	maxJournalBytes = 16 << 20
)

// journal is the file in which a server notes the targets that it makes. It is
// locked as long as the server lives. Without one, only what is needed again is
// found again.
type journal struct {
	mu    sync.Mutex
	file  *os.File
	noted map[string]bool
	bytes int
	uses  int // of targets that are not given up
}

// openJournal opens a journal in a directory, and removes what servers that have
// ended have left according to theirs.
func openJournal(dir string, log *slog.Logger) *journal {
	j := &journal{noted: make(map[string]bool)}
	if dir == "" || os.MkdirAll(dir, 0o700) != nil {
		return j
	}
	old, _ := filepath.Glob(filepath.Join(dir, "*.targets"))
	for i, name := range old {
		if i == maxJournals {
			log.Warn("the state directory holds more journals than are looked at", "directory", dir, "journals", len(old), "limit", maxJournals)
			break
		}
		if err := clearJournal(name); err != nil {
			log.Warn("a file in the state directory is ignored; remove it", "file", name, "reason", err)
		}
	}
	file, err := os.CreateTemp(dir, "*.targets")
	if err != nil {
		return j
	}
	if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		j.file = file
	}
	return j
}

// clearJournal removes what a journal names, and the journal, unless its server
// lives. It returns why it ignores a file that is no journal of this user.
func clearJournal(name string) error {
	file, err := openOwn(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its server has just ended
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(file, maxJournalBytes+1))
	switch {
	case err != nil:
		return err
	case len(text) > maxJournalBytes:
		return fmt.Errorf("it has more than %d bytes", maxJournalBytes)
	}
	lines := 0
	for line := range strings.Lines(string(text)) {
		if lines++; lines > maxJournalLines {
			return fmt.Errorf("it has more than %d lines", maxJournalLines)
		}
		inode, quoted, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		path, err := strconv.Unquote(quoted)
		if err != nil {
			continue
		}
		if t, _ := lockTarget(path); t != nil {
			if info, err := t.dir.Stat(); err == nil && inodeOf(info) == inode {
				t.release()
			} else {
				_ = t.dir.Close()
			}
		}
	}
	_ = os.Remove(name)
	return nil
}

// openOwn opens a regular file of this user, and waits for nobody.
func openOwn(name string) (*os.File, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		err = errors.New("it is no regular file")
	case int(st.Uid) != os.Geteuid():
		err = fmt.Errorf("it belongs to the user %d", st.Uid)
	case st.Size > maxJournalBytes:
		err = fmt.Errorf("it has %d bytes, the limit is %d", st.Size, maxJournalBytes)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func inodeOf(info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return strconv.FormatUint(st.Ino, 10)
}

// note writes down a target.
func (j *journal) note(path string, dir *os.File) {
	line := ""
	if info, err := dir.Stat(); err == nil {
		line = inodeOf(info) + " " + strconv.Quote(path) + "\n"
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.uses++
	if j.file != nil && !j.noted[line] && len(j.noted) < maxJournalLines && j.bytes+len(line) <= maxJournalBytes {
		j.noted[line] = true
		j.bytes += len(line)
		_, _ = j.file.WriteString(line) // the next use of the name finds it as well
	}
}

// forget notes that a target has been given up.
func (j *journal) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.uses--
}

// close closes the journal, and removes it if it names nothing that is left.
func (j *journal) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.file != nil {
		if j.uses == 0 {
			_ = os.Remove(j.file.Name())
		}
		_ = j.file.Close()
		j.file = nil
	}
}

func isOurs(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && int(st.Uid) == os.Geteuid()
}

// stateDir is where journals are; empty: nowhere.
func stateDir() string {
	// What belongs to somebody else, as when it was kept by sudo, is not to be
	// trusted: its journals would have this program remove directories.
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && isOurs(dir) {
		return filepath.Join(dir, "exec-server")
	}
	if os.Geteuid() == 0 {
		return "/run/exec-server"
	}
	if dir, err := os.UserCacheDir(); err == nil && filepath.IsAbs(dir) {
		return filepath.Join(dir, "exec-server")
	}
	return ""
}
