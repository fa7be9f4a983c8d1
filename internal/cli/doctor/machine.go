package doctor

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"execserver/client"
	"execserver/client/local"
	"execserver/internal/cli"
)

// stderrTail keeps the end of the output of a program. Its methods may be called concurrently.
type stderrTail struct {
	mu   sync.Mutex
	data []byte
}

// maxStderrTail bounds the bytes of a stderrTail.
const maxStderrTail = 1 << 10

// Write implements io.Writer.
func (l *stderrTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.data = append(l.data, p...)
	l.data = l.data[max(0, len(l.data)-maxStderrTail):]
	return len(p), nil
}

func (l *stderrTail) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.data))
}

// optional lists the capabilities that a server may lack on purpose, or because of its system or
// transport.
var optional = []string{"processDirectExec", "processPreparedExec", "sessionObserve", "sessionList", "sessionKeep", "sessionControl", "fsWatchMissing"}

// examineVersions compares the server with this program.
func (d *doctor) examineVersions(env *client.Environment) {
	info := env.Info()
	var missing []string
	if own, err := local.New(nil); err == nil {
		for _, name := range slices.Sorted(maps.Keys(own.Info().Capabilities)) {
			if own.Info().Capabilities[name] && !info.Capabilities[name] && !slices.Contains(optional, name) {
				missing = append(missing, name)
			}
		}
		_ = own.Close()
	}
	switch version := info.Version; {
	case !info.Capabilities["processAck"]:
		d.find("version", warning, "start exec-server there instead, if you need more",
			"the server is a released Codex %s, and this program is %s: it lacks %s", version, d.version, strings.Join(missing, ", "))
	case len(missing) > 0:
		d.find("version", warning, "install this version there", "the server is %s, and this program is %s: it lacks %s",
			version, d.version, strings.Join(missing, ", "))
	default:
		d.ok("version", "the server is %s, and this program is %s", version, d.version)
	}
}

// examineSandbox runs a command in a sandbox.
func (d *doctor) examineSandbox(env *client.Environment) {
	info := env.Info()
	if info.Sandbox == nil {
		d.find("sandbox", warning, "", "the server does not say what confines commands")
		return
	}
	mend := "see docs/sandbox.md for what each mechanism needs"
	switch {
	case info.Sandbox.Mode == "off":
		d.find("sandbox", warning, "start the server without --sandbox=off if Codex is to confine commands", "the operator has turned it off")
		return
	case info.Sandbox.Means == "none":
		d.find("sandbox", problem, mend, "nothing can confine commands there: %s", info.Sandbox.Reason)
		return
	}
	ctx, cancel := context.WithTimeout(d.ctx, doctorTimeout)
	defer cancel()
	command := env.Command(ctx, "true")
	command.Sandbox = new(client.Sandbox)
	command.Dir = "/"
	if err := command.Run(); err != nil {
		d.find("sandbox", problem, mend, "no command runs in a sandbox by %s: %s", info.Sandbox.Means, err)
		return
	}
	d.ok("sandbox", "a command runs in one, by %s", info.Sandbox.Means)
}

// probe is a script that prints properties of a machine, one per line. It runs in any sh; dash
// has ulimit -p instead of -u.
const probe = `date +%s
id -un
cd "$1" 2>/dev/null && echo in || echo out
if [ -r . ] && [ -x . ]; then [ -w . ] && echo write || echo read; else echo none; fi
df -Pk . 2>/dev/null | tail -n 1
df -Pk "${TMPDIR:-/tmp}" 2>/dev/null | tail -n 1
ulimit -n
(ulimit -u) 2>/dev/null || (ulimit -p) 2>/dev/null || echo unknown
`

// examineMachine examines the machine by a command.
func (d *doctor) examineMachine(env *client.Environment) {
	info := env.Info()
	if info.OS == "windows" {
		return // there is no sh
	}
	ctx, cancel := context.WithTimeout(d.ctx, doctorTimeout)
	defer cancel()
	dir := info.Dir
	if dir == "" {
		dir = "/"
		d.find("directory", problem, "restart the server in a permanent directory", "the directory in which the server was started is gone, or its user may not be there")
	}
	command := env.Command(ctx, "/bin/sh", "-c", probe, "sh", dir)
	command.Dir = "/"
	began := time.Now()
	out, err := command.Output()
	ended := time.Now()
	if err != nil {
		d.find("commands", problem, "see the log of the server", "cannot run /bin/sh there: %s", err)
		return
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 8 {
		d.find("commands", problem, "", "the script that examines the machine printed something unexpected: %q", out)
		return
	}
	if info.Dir != "" {
		d.judgeDirectory(dir, lines[1], lines[2], lines[3])
	}
	d.judgeClock(lines[0], began, ended)
	d.judgeDisk("disk", dir, lines[4])
	d.judgeDisk("temporary", info.TempDir, lines[5])
	d.judgeLimit("descriptors", lines[6], 1024, "ulimit -n")
	d.judgeLimit("processes", lines[7], 256, "ulimit -u")
}

// judgeDirectory reports the rights of the user of the server in the directory where commands
// start.
func (d *doctor) judgeDirectory(dir, user, entered, rights string) {
	const mend = "start the server in another directory, or as another user"
	switch {
	case entered != "in" || rights == "none":
		d.find("directory", problem, mend, "%s may not use %s", user, dir)
	case rights != "write":
		d.find("directory", warning, mend, "%s may read %s, but not write there", user, dir)
	default:
		d.ok("directory", "%s may write in %s", user, dir)
	}
}

// How far the clocks may differ. Beyond clockSkew, servers refuse signed tokens.
const (
	clockTolerance = 5 * time.Second
	clockSkew      = 30 * time.Second
)

// judgeClock compares the clocks. The clock of the machine was read between began and ended.
func (d *doctor) judgeClock(read string, began, ended time.Time) {
	seconds, err := strconv.ParseInt(read, 10, 64)
	if err != nil {
		d.find("clock", warning, "", "the date of the machine cannot be read: %q", read)
		return
	}
	remote := time.Unix(seconds, 0)
	off := remote.Sub(ended)
	if early := began.Sub(remote.Add(time.Second)); early > 0 {
		off = -early
	}
	switch off, direction := off.Abs(), map[bool]string{true: "ahead of", false: "behind"}[off > 0]; {
	case remote.Before(ended) && remote.Add(time.Second).After(began), off < clockTolerance:
		d.ok("clock", "the clocks agree")
	case off < clockSkew:
		d.find("clock", warning, "set the clocks by NTP", "its clock is %s %s the clock of this machine", cli.ShortDuration(off), direction)
	default:
		d.find("clock", problem, "set the clocks by NTP; servers refuse signed tokens beyond 30s", "its clock is %s %s the clock of this machine", cli.ShortDuration(off), direction)
	}
}

// Free space, in KiB, below which there is a problem, or a warning.
const (
	fullKiB = 16 << 10
	lowKiB  = 256 << 10
)

// judgeDisk reads the last line of df -Pk.
func (d *doctor) judgeDisk(check, dir, line string) {
	words := strings.Fields(line)
	if len(words) < 6 {
		return // df does not know the file system
	}
	free, err := strconv.ParseInt(words[3], 10, 64)
	if err != nil {
		return
	}
	text := strconv.FormatInt(free>>10, 10) + " MiB are free for " + dir
	switch {
	case free < fullKiB:
		d.find(check, problem, "make room on "+words[5], "only %s", text)
	case free < lowKiB:
		d.find(check, warning, "make room on "+words[5], "only %s", text)
	default:
		d.ok(check, "%s", text)
	}
}

// judgeLimit checks a limit of commands.
func (d *doctor) judgeLimit(check, value string, least int, flag string) {
	n, err := strconv.Atoi(value)
	switch {
	case err != nil: // unlimited, or unknown
		d.ok(check, "a command may have: %s", value)
	case n < least:
		d.find(check, warning, "raise it ("+flag+") for the server", "a command may have only %d", n)
	default:
		d.ok(check, "a command may have %d", n)
	}
}
