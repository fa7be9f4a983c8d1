package process

import (
	"os"
	"strconv"
	"strings"

	"execserver/internal/sys"
)

// oomScoreFile is by how much the kernel prefers or spares a process when there is
// no memory left.
const oomScoreFile = "/oom_score_adj"

// oomScore reads that of a process, or "self"; "" if it cannot be read.
func oomScore(pid string) string {
	text, err := sys.ReadFile("/proc/" + pid + oomScoreFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// restoreOOMScore gives a process that has just been started the score that this
// program was started with. Whoever has spared this program since then, because it
// must not be killed, did not mean its processes.
func (o *Ownership) restoreOOMScore(pid int) {
	if o.oomScore == "" || oomScore("self") == o.oomScore {
		return
	}
	err := sys.WriteFile("/proc/"+strconv.Itoa(pid)+oomScoreFile, []byte(o.oomScore), 0)
	if err != nil && !os.IsNotExist(err) { // it has not ended
		o.log.Warn("a process keeps the server's oom_score_adj", "pid", pid, "want", o.oomScore, "error", err)
	}
}
