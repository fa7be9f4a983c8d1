package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/internal/testkit/responses"
)

// A fact is what the test knows of a command beyond its words. Its command is the beginning
// of those that it is about.
type fact struct {
	command string
	// skip is why the command cannot be run here.
	skip string
	// before is what the person has done to have something to look at.
	before string
	// instead are words of the command, each followed by what the person types for it.
	instead []string
	// keys are typed while the command runs on a terminal.
	keys string
	// prints is a regular expression for what the command prints.
	prints string
	// serves says that the command runs until it is stopped. It is ready when it has printed
	// what matches prints.
	serves bool
}

const (
	noSystemd = "systemd does not run here"
	notOnBox  = "no exec-server is in the PATH of the box; the tests of unix sockets in server have the page over one"
	oneBox    = "there is no second box; TestOtherMachine in test/codex has two machines"
	builds    = "builds the program, as make release does"
	withTLS   = "no server with a certificate runs here; TestOwnAuthority in test/codex has one"
)

// server matches the commands that serve. They print where they listen.
var server = regexp.MustCompile(`^exec-server (serve|--listen) `)

// pages are the pages, and what is to be known of their commands.
var pages = map[string][]fact{
	"README.md": {
		{command: "make install", skip: builds},
		{command: "exec-server run --on box -- hostname", prints: `^box\n$`},
		{command: "codex", before: "ssh box mkdir -p project", prints: `box`},
		{command: "exec-server run -t", keys: "hostname; exit\n", prints: `box`},
		{command: "exec-server cp", before: "mkdir src"},
		{command: "exec-server forward", serves: true, prints: `127.0.0.1:3000`},
		{command: "exec-server doctor", prints: `handshake`},
		{
			command: "exec-server run -d", prints: `build`,
			before: `scp Makefile "$(command -v exec-server)" box:
ssh box 'mkfifo url; nohup ./exec-server serve --listen ws://127.0.0.1:8765 --web >url 2>exec-server.log </dev/null & head -n 1 url'
exec-server codex-config add box --replace --url ws://127.0.0.1:8765`,
		},
		{command: "exec-server serve --listen ws://127.0.0.1:8765", before: "pkill exec-server"},
	},
	"docs/page.md": {
		{command: "ssh box exec-server web", skip: notOnBox},
		{command: "exec-server web", prints: `http://`},
		{command: "exec-server serve --listen ws://localhost:8765 --record", before: "pkill exec-server"},
		{command: "exec-server cast ls", before: "exec-server run --url ws://localhost:8765 -- echo recorded"},
		{command: "exec-server cast get", instead: []string{"ID ", `"$(exec-server cast ls --url ws://localhost:8765 --json | sed -n 's/.*"id":"\([^"]*\)".*/\1/p' | head -n 1)" `}},
		{command: "asciinema play", prints: `recorded`},
	},
	"docs/sandbox.md": {},
	"docs/codex.md": {
		{command: "exec-server run --on box -- hostname", prints: `^box\n$`},
		{command: "codex -C", prints: `box`},
		{command: "codex", before: "ssh box mkdir -p project", prints: `box`},
		{command: "ssh box 'git init", before: "git init -q -b main && git add . && git commit -qm begin"},
		// The ways to copy are alternatives: a second way would find the files of the first, of which
		// git's objects are read-only.
		{command: "rsync -a ~/project/ box:work/", before: "ssh box rm -rf work"},
		{command: "exec-server cp --on box ~/project/.", before: "ssh box rm -rf work"},
		{command: "exec-server ls", prints: `main\.go`},
		{command: "ssh box 'systemctl", skip: noSystemd},
		{command: "scp ~/.local/bin/exec-server", before: `mkdir -p ~/.local/bin && cp "$(command -v exec-server)" ~/.local/bin`},
		{command: "export SSL_CERT_FILE", skip: withTLS},
		{command: "exec-server codex-config add box --replace --url wss:", skip: withTLS},
		{command: "exec-server attach", before: "exec-server run -d --name session --on box -- echo hello", instead: []string{"SESSION/PROCESS", "session"}, prints: `hello`},
		{command: "GOOS=", skip: builds},
		{command: "exec-server connect --listen", before: "pkill ssh; pkill exec-server", serves: true, prints: `ws://127.0.0.1:8765`},
		{command: "CODEX_EXEC_SERVER_URL=", prints: `box`},
		{command: "CODEX_HOME=~/.codex-gpu codex", skip: oneBox},
	},
}

// blocks returns the sh blocks of a page, each with the line on which it begins and where it
// is typed. "```sh box" begins one that is typed on the box.
func blocks(text string) (list []block) {
	open := false
	for i, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, "```sh"):
			open = true
			list = append(list, block{line: i + 2, where: strings.TrimSpace(strings.TrimPrefix(line, "```sh"))})
		case strings.HasPrefix(line, "```"):
			open = false
		case open:
			list[len(list)-1].text += line + "\n"
		}
	}
	return list
}

type block struct {
	line  int
	where string
	text  string
}

// TestPages types all commands of the pages.
func TestPages(t *testing.T) {
	codex := ""
	if os.Getenv("EXEC_SERVER_TEST_CODEX") == "1" {
		codex = testkit.Codex(t)
	}
	for name, facts := range pages {
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("..", "..", name))
			must(t, err)
			model := responses.Start(runHostname)
			defer model.Close()
			newHome(t, codex, model)
			r := reader{t: t, page: name, facts: facts, used: make([]bool, len(facts)), shells: map[string]*shell{}, codex: codex}
			for _, b := range blocks(string(text)) {
				for _, command := range commands(b.text) {
					r.typeCommand(b, command)
				}
			}
			for i, used := range r.used {
				if !used {
					t.Errorf("%s has no command that begins with %q", name, facts[i].command)
				}
			}
		})
	}
}

// reader is somebody who types what a page says.
type reader struct {
	t      *testing.T
	page   string
	facts  []fact
	used   []bool
	shells map[string]*shell
	codex  string
}

func (r *reader) typeCommand(b block, command string) {
	t := r.t
	t.Helper()
	var f fact
	if i := slices.IndexFunc(r.facts, func(f fact) bool { return strings.HasPrefix(command, f.command) }); i >= 0 {
		f, r.used[i] = r.facts[i], true
	}
	at := fmt.Sprintf("%s:%d: %s", r.page, b.line, command)
	switch {
	case f.skip != "":
		t.Logf("%s\nnot run: %s", at, f.skip)
		return
	case strings.HasPrefix(command, "codex") && !strings.HasPrefix(command, "codex-") && r.codex == "":
		t.Logf("%s\nnot run: without EXEC_SERVER_TEST_CODEX=1", at)
		return
	}
	if server.MatchString(command) {
		f.serves = true
		if f.prints == "" {
			f.prints = `(?m)^(ws|wss|unix)://`
		}
	}
	s := r.shells[b.where]
	if s == nil {
		s = login(t, b.where)
		r.shells[b.where] = s
	}
	if f.before != "" {
		if out, code := s.run(f.before); code != 0 {
			t.Fatalf("%s\nbefore it, %s\nexits with %d and prints:\n%s", at, f.before, code, out)
		}
	}
	prints := regexp.MustCompile(f.prints)
	command = strings.NewReplacer(f.instead...).Replace(command)
	if f.serves {
		s.serve(command, prints.MatchString)
		return
	}
	if f.keys != "" {
		command = fmt.Sprintf("printf %%s %s | script -qec %s /dev/null", quote(f.keys), quote(command))
	}
	out, code := s.run(command)
	if code != 0 {
		t.Fatalf("%s\nexits with %d and prints:\n%s", at, code, out)
	}
	if !prints.MatchString(out) {
		t.Errorf("%s\nprints:\n%s", at, out)
	}
}

// quote quotes a word for a shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// runHostname is a model that runs one command.
func runHostname(r *responses.Request) []responses.Item {
	const call = "call"
	if len(r.Tools) == 0 { // Codex wants a title for the conversation
		return []responses.Item{responses.Message("hostname")}
	}
	out, done := r.Output(call)
	if !done {
		return []responses.Item{responses.Call(call, "exec_command", map[string]any{"cmd": "hostname", "yield_time_ms": 30000})}
	}
	return []responses.Item{responses.Message("it printed " + out.Text())}
}
