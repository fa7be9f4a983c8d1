package ownership

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"execserver/internal/sys"
)

// oomScoreFile holds a process's adjustment of its chance to be killed when memory runs
// out.
const oomScoreFile = "/oom_score_adj"

// oomScore reads the score of a process, or of "self"; "" if it cannot be read.
func oomScore(pid string) string {
	fd, err := sys.Open("/proc/"+pid+oomScoreFile, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer sys.Close(fd)
	var text [16]byte // a score has five characters at most
	n, _ := sys.Read(fd, text[:])
	return strings.TrimSpace(string(text[:max(n, 0)]))
}

// RestoreOOMScore gives a process that has just been started the score that this
// program was started with. Somebody may have protected this program since then, but
// did not mean its processes.
func (t *Tree) RestoreOOMScore(pid int) {
	o := t.owner.ownership
	if o.foreign != nil || o.oomScore == "" || oomScore("self") == o.oomScore {
		return
	}
	err := sys.WriteFile("/proc/"+strconv.Itoa(pid)+oomScoreFile, []byte(o.oomScore), 0)
	if err != nil && !os.IsNotExist(err) { // it has not ended
		o.log.Warn("a process keeps the server's oom_score_adj", "pid", pid, "want", o.oomScore, "error", err)
	}
}
