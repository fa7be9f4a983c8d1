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

// Limits of journals. A command confined to a directory that holds the state directory
// may have put anything there.
const (
	maxJournals     = 1_000
	maxJournalLines = 10_000
	maxJournalBytes = 16 << 20
)

// journal is the file in which a server records the targets that it creates. The server
// locks it while it lives. Without a journal, a target left behind is found only when a
// command needs it again.
type journal struct {
	mu    sync.Mutex
	file  *os.File
	lines map[string]bool
	bytes int
	uses  int // number of targets that have not been released
}

// openJournal opens a journal in a directory, and removes the targets in the journals of
// servers that have ended.
func openJournal(dir string, log *slog.Logger) *journal {
	j := &journal{lines: make(map[string]bool)}
	if dir == "" || os.MkdirAll(dir, 0o700) != nil {
		return j
	}
	old, _ := filepath.Glob(filepath.Join(dir, "*.targets"))
	for i, name := range old {
		if i == maxJournals {
			log.Warn("the state directory has too many journals; some are ignored", "directory", dir, "journals", len(old), "limit", maxJournals)
			break
		}
		if err := clearJournal(name); err != nil {
			log.Warn("ignoring a file in the state directory; remove it", "file", name, "reason", err)
		}
	}
	file, err := os.CreateTemp(dir, "*.targets")
	if err != nil {
		return j
	}
	if lock(file) == nil {
		j.file = file
	}
	return j
}

// clearJournal removes the targets that a journal names, and the journal, unless its
// server is running. It returns an error for a file that is not a journal of this user.
func clearJournal(name string) error {
	file, err := openPlain(name, maxJournalBytes, func(info fs.FileInfo) error {
		if !isOwn(info) {
			return errors.New("it belongs to another user")
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // its server has just ended
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if lock(file) != nil {
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

func inodeOf(info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return strconv.FormatUint(st.Ino, 10)
}

// add records a target.
func (j *journal) add(path string, dir *os.File) {
	line := ""
	if info, err := dir.Stat(); err == nil {
		line = inodeOf(info) + " " + strconv.Quote(path) + "\n"
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.uses++
	if j.file != nil && !j.lines[line] && len(j.lines) < maxJournalLines && j.bytes+len(line) <= maxJournalBytes {
		j.lines[line] = true
		j.bytes += len(line)
		_, _ = j.file.WriteString(line) // the next use of the name finds it as well
	}
}

// remove records that a target has been released.
func (j *journal) remove() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.uses--
}

// close closes the journal, and removes it if no target is left.
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

// isOwnDirectory reports whether a directory, which must not be a link, belongs to this user.
func isOwnDirectory(dir string) bool {
	info, err := os.Lstat(dir)
	return err == nil && info.IsDir() && isOwn(info)
}

// stateDirs returns the directories in which programs of this user may have journals. The
// first one is this program's; a program with another environment may use another one.
func stateDirs() (dirs []string) {
	// Do not trust a directory of another user, as when sudo kept the variable: its
	// journals would make this program remove directories.
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && isOwnDirectory(dir) {
		dirs = append(dirs, filepath.Join(dir, "exec-server"))
	}
	if os.Geteuid() == 0 {
		return append(dirs, "/run/exec-server")
	}
	if dir, err := os.UserCacheDir(); err == nil && filepath.IsAbs(dir) {
		dirs = append(dirs, filepath.Join(dir, "exec-server"))
	}
	return append(dirs, filepath.Join("/run/user", strconv.Itoa(os.Geteuid()), "exec-server"))
}

// programDirs returns the directories in which exec-server and exec-fleet keep their
// configuration, credentials and state, whichever of them runs on this machine.
func programDirs() []string {
	bases := []string{"/etc", os.Getenv("XDG_CONFIG_HOME"), os.Getenv("XDG_STATE_HOME")}
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		bases = append(bases, filepath.Join(home, ".config"), filepath.Join(home, ".local/state"))
	}
	dirs := append(stateDirs(), "/var/lib/exec-fleet-gateway") // /var/lib/exec-server holds the commands' files
	// For root, stateDirs leaves it out. It has programs that connect starts, and sockets of servers.
	if dir, err := os.UserCacheDir(); err == nil && filepath.IsAbs(dir) {
		dirs = append(dirs, filepath.Join(dir, "exec-server"))
	}
	for _, base := range bases {
		if filepath.IsAbs(base) {
			dirs = append(dirs, filepath.Join(base, "exec-server"), filepath.Join(base, "exec-fleet"))
		}
	}
	return dirs
}

// lock takes an exclusive lock on a file. It does not block.
func lock(file *os.File) error { return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
