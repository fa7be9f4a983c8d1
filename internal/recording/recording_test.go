package recording_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"execserver/internal/process"
	"execserver/internal/recording"
	"execserver/internal/session"
	"execserver/internal/testkit"
	"execserver/protocol"
)

func TestMain(m *testing.M) { testkit.VerifyMain(m) }

func open(t *testing.T, dir string, opts *recording.Options) *recording.Recorder {
	t.Helper()
	r, err := recording.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// start starts a recorded child.
func start(t *testing.T, r *recording.Recorder, spec process.Spec) (*process.Process, session.Recording) {
	t.Helper()
	return startAs(t, r, spec, session.Recorded{Principal: "somebody"})
}

// startAs starts a child that is recorded with some of these properties.
func startAs(t *testing.T, r *recording.Recorder, spec process.Spec, about session.Recorded) (*process.Process, session.Recording) {
	t.Helper()
	spec.Dir, spec.Env = "/", map[string]string{"PATH": os.Getenv("PATH"), "TERM": "xterm"}
	p, err := process.Start(spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		p.Abandon()
		<-p.Closed()
		p.Release()
		<-p.Done()
	})
	about.Session, about.Process, about.Description = "s", "p", p.Describe()
	if spec.TTY && about.Term == "" {
		about.Size, about.Term = protocol.TerminalSize{Rows: 24, Cols: 80}, "xterm"
	}
	rec := r.Record(about, p.Log)
	p.SetTap(rec)
	return p, rec
}

// record records a child to its end.
func record(t *testing.T, r *recording.Recorder, spec process.Spec) {
	t.Helper()
	_, rec := start(t, r, spec)
	testkit.Within(t, "the recording", func() { <-rec.Done() })
}

func shell(script string) process.Spec { return process.Spec{Argv: []string{"/bin/sh", "-c", script}} }

// files returns the names in a directory, sorted.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// only returns the content of the only recording.
func only(t *testing.T, dir string) []byte {
	t.Helper()
	names := files(t, dir)
	if len(names) != 1 || !strings.HasSuffix(names[0], ".cast") {
		t.Fatalf("the files are %q", names)
	}
	content, err := os.ReadFile(filepath.Join(dir, names[0]))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// event is an event of a recording.
type event struct {
	at         float64 // seconds since the start
	code, data string
}

// castHeader is what players read of the first line.
type castHeader struct {
	Version, Width, Height int
	Env                    map[string]string
	ExecServer             struct{ Principal string }
}

// read returns the header and the events of a recording, which must be as the format says:
// whole lines, with times that do not run backwards.
func read(t *testing.T, content []byte) (h castHeader, events []event) {
	t.Helper()
	if !bytes.HasSuffix(content, []byte("\n")) {
		t.Errorf("the last line is not whole: %.100q", content[bytes.LastIndexByte(content, '\n')+1:])
	}
	for i, line := range bytes.Split(bytes.TrimSuffix(content, []byte("\n")), []byte("\n")) {
		if i == 0 {
			if err := json.Unmarshal(line, &h); err != nil || h.Version != 2 || h.Width < 1 || h.Height < 1 {
				t.Fatalf("the header is %s: %v", line, err)
			}
			continue
		}
		var e event
		fields := []any{&e.at, &e.code, &e.data}
		if err := json.Unmarshal(line, &fields); err != nil || len(fields) != 3 || len(e.code) != 1 {
			t.Fatalf("an event is %.100q: %v", line, err)
		}
		if len(events) > 0 && e.at < events[len(events)-1].at || e.at < 0 {
			t.Errorf("time runs backwards to %v", e.at)
		}
		events = append(events, e)
	}
	return h, events
}

// text joins the data of events.
func text(events []event, code string) string {
	var b strings.Builder
	for _, e := range events {
		if e.code == code {
			b.WriteString(e.data)
		}
	}
	return b.String()
}

// TestPipes records pipes, with the carriage returns that a terminal would have added, also
// where a character was cut in two.
func TestPipes(t *testing.T) {
	dir := t.TempDir()
	r := open(t, filepath.Join(dir, "new"), nil)
	record(t, r, shell(`printf 'a\r\nb\303'; echo oops >&2; sleep 0.1; printf '\251\n\n\r\033[1m\302'; exit 3`))
	_, events := read(t, only(t, filepath.Join(dir, "new")))
	got := text(events, "o")
	if !strings.Contains(got, "oops\r\n") || strings.Replace(got, "oops\r\n", "", 1) != "a\r\r\nbé\r\n\r\n\r\x1b[1m\ufffd" {
		t.Errorf("the output is %q", got)
	}
	if last := events[len(events)-1]; last.code != "m" || last.data != "exit status 3" || last.at < 0.1 {
		t.Errorf("the last event is %+v", last)
	}
	if info, err := os.Stat(filepath.Join(dir, "new", files(t, filepath.Join(dir, "new"))[0])); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the file is %v, %v", info.Mode(), err)
	}
}

// TestTerminal records a terminal with its size, how it changes, and input only if asked to.
func TestTerminal(t *testing.T) {
	for _, input := range []bool{false, true} {
		t.Run(fmt.Sprint("input ", input), func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Chmod(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			r := open(t, dir, &recording.Options{Input: input})
			spec := shell(`read line; stty size; kill -9 $$`)
			spec.TTY = true
			p, rec := start(t, r, spec)
			if err := p.Resize(protocol.TerminalSize{Rows: 30, Cols: 100}); err != nil {
				t.Fatal(err)
			}
			p.Write([]byte("secret\n"), nil, nil, nil)
			testkit.Within(t, "the recording", func() { <-rec.Done() })
			content := only(t, dir)
			header, events := read(t, content)
			out := text(events, "o")
			if !strings.Contains(out, "30 100\r\n") {
				t.Errorf("the output is %q", out)
			}
			if got := text(events, "r"); got != "100x30" {
				t.Errorf("the events are %+v", events)
			}
			if got := text(events, "i"); got != "secret\n" && input || got != "" && !input {
				t.Errorf("the input is %q", got)
			}
			if got := text(events, "m"); got != "killed by SIGKILL" {
				t.Errorf("the marker is %q", got)
			}
			if header.Width != 80 || header.Height != 24 || header.Env["TERM"] != "xterm" || header.ExecServer.Principal != "somebody" {
				t.Errorf("the header is %+v", header)
			}
		})
	}
}

// TestKilled leaves what a server that was killed leaves: the next one makes it whole, and
// the players of others can read it.
func TestKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	r := open(t, dir, nil)
	if _, err := recording.Open(dir, nil); err == nil || !strings.Contains(err.Error(), "another server") {
		t.Errorf("a second server records there, too: %v", err)
	}
	record(t, r, shell("echo 1; sleep 0.02; echo 2"))
	r.Close()
	content := only(t, dir)
	name := strings.TrimSuffix(files(t, dir)[0], ".cast")
	half := bytes.LastIndexByte(content[:len(content)-1], '\n')
	for torn, want := range map[string]string{
		string(content[:half+5]): string(content[:half+1]),
		string(content):          string(content),
		`{"version":2,`:          "",
		"":                       "",
	} {
		for _, left := range files(t, dir) {
			if err := os.Remove(filepath.Join(dir, left)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name+".cast.live"), []byte(torn), 0o600); err != nil {
			t.Fatal(err)
		}
		open(t, dir, nil).Close()
		if want == "" {
			if left := files(t, dir); len(left) != 0 {
				t.Errorf("%q leaves %q", torn, left)
			}
		} else if got := only(t, dir); string(got) != want {
			t.Errorf("%q becomes %q, want %q", torn, got, want)
		}
	}
}

// TestBounds floods: one recording stops at its limit, and says so, while the process goes
// on; the oldest recordings make room for new ones; and old ones go by their age.
func TestBounds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	r := open(t, dir, &recording.Options{MaxBytes: 100_000, TotalBytes: 250_000})
	for range 8 {
		record(t, r, shell(`head -c 2000000 /dev/zero | tr '\0' x`))
	}
	names := files(t, dir)
	if len(names) < 1 || len(names) == 8 { // a recording stops before a whole event that does not fit
		t.Errorf("%d recordings", len(names))
	}
	total := 0
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		total += len(content)
		if _, events := read(t, content); text(events, "m") != "the recording stops here: it may have 100000 bytes" {
			t.Errorf("%s ends with %q", name, text(events, "m"))
		}
	}
	if total > 250_000 {
		t.Errorf("all have %d bytes", total)
	}
	r.Close()
	for _, name := range names {
		old := time.Now().Add(-time.Hour)
		if err := os.Chtimes(filepath.Join(dir, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	open(t, dir, &recording.Options{MaxAge: time.Minute})
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("too old, and still there: %q", left)
	}
}

// TestQuotas has one principal record more than its quota: its own recordings make room,
// and those of others stay. Without quotas, the oldest makes room.
func TestQuotas(t *testing.T) {
	for _, limited := range []bool{true, false} {
		t.Run(fmt.Sprint("quotas ", limited), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "r")
			r := open(t, dir, &recording.Options{MaxBytes: 60_000, TotalBytes: 300_000})
			recordAs := func(principal string) string {
				before := files(t, dir)
				_, rec := startAs(t, r, shell(`head -c 50000 /dev/zero | tr '\0' x`), session.Recorded{Principal: principal, Limited: limited})
				testkit.Within(t, "the recording", func() { <-rec.Done() })
				for _, name := range files(t, dir) {
					if !slices.Contains(before, name) {
						return name
					}
				}
				return ""
			}
			ann := recordAs("ann")
			for range 12 {
				if recordAs("mallory") == "" {
					t.Error("mallory is not recorded any more")
				}
			}
			if there := slices.Contains(files(t, dir), ann); there != limited {
				t.Errorf("the recording of ann is there: %v", there)
			}
			if recordAs("ann") == "" || recordAs("bob") == "" {
				t.Error("somebody who recorded little is not recorded")
			}
			r.Close()
			left := len(files(t, dir))
			open(t, dir, &recording.Options{TotalBytes: 300_000})
			if n := len(files(t, dir)); n != left || n < 4 {
				t.Errorf("there were %d recordings, and after a restart %d", left, n)
			}
		})
	}
}

// TestLiveQuota fills the quota of a principal with recordings that are not over.
func TestLiveQuota(t *testing.T) {
	r := open(t, filepath.Join(t.TempDir(), "r"), &recording.Options{TotalBytes: 300_000})
	var all []session.Recording
	for range 30 {
		_, rec := startAs(t, r, process.Spec{Argv: []string{"sleep", "1000"}}, session.Recorded{Principal: "mallory", Limited: true})
		all = append(all, rec)
	}
	refused := 0
	for _, rec := range all[20:] { // 18 would have room without quotas
		testkit.Within(t, "the end of a recording without room", func() { <-rec.Done() })
		refused++
	}
	_, rec := startAs(t, r, shell("echo evidence"), session.Recorded{Principal: "ann", Limited: true})
	testkit.Within(t, "the recording", func() { <-rec.Done() })
	if c := r.Counts(); c.Kept != 1 {
		t.Errorf("%d were refused, and the counts are %+v", refused, c)
	}
}

// TestHostileWriter has a client write and choose what could make a recording unreadable.
func TestHostileWriter(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	r := open(t, dir, &recording.Options{Input: true})
	spec := shell(`head -c 3000000 | wc -c`)
	spec.PipeStdin = true
	p, rec := startAs(t, r, spec, session.Recorded{Principal: "somebody"})
	input := append([]byte("echo evil\n"), bytes.Repeat([]byte{1}, 3_000_000)...)
	p.Write(input, nil, nil, nil)
	testkit.Within(t, "the recording", func() { <-rec.Done() })
	_, events := read(t, only(t, dir))
	if got := text(events, "i"); !strings.HasPrefix(got, "echo evil\n\x01") || len(got) < 900_000 {
		t.Errorf("%d bytes of input, which begin with %.20q", len(got), got)
	}
	if got := text(events, "m"); !strings.Contains(got, "bytes of input are missing here") {
		t.Errorf("the marker is %q", got)
	}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Remove(filepath.Join(dir, files(t, dir)[0])))
	spec = shell("true")
	spec.TTY = true
	_, rec = startAs(t, r, spec, session.Recorded{Term: strings.Repeat("\x01", 70_000), Size: protocol.TerminalSize{Rows: 1, Cols: 1}})
	testkit.Within(t, "the recording", func() { <-rec.Done() })
	if n := bytes.IndexByte(only(t, dir), '\n'); n > 4096 {
		t.Errorf("the header has %d bytes", n)
	}
}

// TestForeignDirectory refuses a directory that others can read.
func TestForeignDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := recording.Open(dir, nil); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("recordings that others can read: %v", err)
	}
}
