//go:build unix

package environments_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"execserver/client"
	"execserver/client/environments"
	"execserver/internal/testkit"
	"execserver/server"
)

// configure makes a Codex home with a file, unless it is empty.
func configure(t testing.TB, file string) (home string) {
	t.Helper()
	home = t.TempDir()
	t.Setenv("CODEX_HOME", home)
	t.Setenv("CODEX_EXEC_SERVER_URL", "")
	if file != "" {
		if err := os.WriteFile(filepath.Join(home, "environments.toml"), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return home
}

// badConfigs are files that the released client refuses, too, and a part of the error.
var badConfigs = []struct{ file, want string }{
	{`default = "box"`, "default environment `box` is not configured"},
	{`default = ""`, "default environment id cannot be empty"},
	{`default = " "`, "default environment id cannot be empty"},
	{"default = \"LOCAL\"\n[[environments]]\nid=\"a\"\nurl=\"ws://x\"", "default environment `LOCAL` is not configured"},
	{"default=\"local\"\ninclude_local=false", "default environment `local` is not configured"},
	{`foo = "box"`, "unknown key foo"},
	{`include_local="x"`, `(last key "include_local")`},
	{`default=3`, `(last key "default")`},
	{`environments=3`, `(last key "environments")`},
	{`environments=[1]`, `(last key "environments")`},
	{entry(`url="ws://x"`), "environments[0]: id is missing"},
	{entry(`id="a"`, `url="ws://x"`, `foo=1`), "unknown key environments.foo"},
	{entry(`id=5`), `(last key "environments.id")`},
	{entry(`id="a"`, `url=1.5`), `(last key "environments.url")`},
	{entry(`id="a"`, `url=true`), `(last key "environments.url")`},
	{entry(`id="a"`, `url=[]`), `(last key "environments.url")`},
	{entry(`id="a"`, `url={}`), `(last key "environments.url")`},
	{entry(`id="a"`, `program="x"`, `args="x"`), `(last key "environments.args")`},
	{entry(`id="a"`, `program="x"`, `args=["x",1]`), `(last key "environments.args")`},
	{entry(`id="a"`, `program="p"`, `env={A=1}`), "environments[0]: env has A, which is not a string"},
	{entry(`id="a"`, `url="ws://x"`, `skills=1`), "environments[0]: skills is not a table"},
	{entry(`id="a"`, `url="ws://x"`, `connect_timeout_sec=-1`), "environments[0]: connect_timeout_sec is not a number of seconds"},
	{entry(`id="a"`, `url="ws://x"`, `initialize_timeout_sec=nan`), "environments[0]: initialize_timeout_sec is not a number of seconds"},
	{entry(`id="a"`, `url="ws://x"`, `initialize_timeout_sec=1e30`), "environments[0]: initialize_timeout_sec is not a number of seconds"},
	{entry(`id="a"`, `url="ws://x"`, `initialize_timeout_sec="x"`), `(last key "environments.initialize_timeout_sec")`},
	{entry(`id=""`, `url="ws://x"`), "environment id cannot be empty"},
	{entry(`id=" a"`, `url="ws://x"`), "environment id ` a` must not contain surrounding whitespace"},
	{entry(`id="a b"`, `url="ws://x"`), "environment id `a b` must contain only ASCII letters, numbers, '-' or '_'"},
	{entry(`id="äö"`, `url="ws://x"`), "environment id `äö` must contain only ASCII letters, numbers, '-' or '_'"},
	{entry(`id="local"`, `url="ws://x"`), "environment id `local` is reserved"},
	{entry(`id="None"`, `url="ws://x"`), "environment id `None` is reserved"},
	{entry(`id="`+strings.Repeat("a", 65)+`"`, `url="ws://x"`), "environment id `" + strings.Repeat("a", 65) + "` cannot be longer than 64 characters"},
	{entry(`id="a"`, `url="ws://x"`) + entry(`id="a"`, `url="ws://y"`), "environment id `a` is duplicated"},
	{entry(`id="a"`, `url="ws://x"`) + entry(`id="a"`, `url="y"`), "environment url `y` must use ws:// or wss://"},
	{entry(`id="a"`), "environment `a` must set exactly one of url or program"},
	{entry(`id="a"`, `url=""`, `program="x"`), "environment `a` must set exactly one of url or program"},
	{entry(`id="a"`, `args=["x"]`), "environment `a` args, env, and cwd require program"},
	{entry(`id="a"`, `url="ws://x"`, `args=[]`), "environment `a` args, env, and cwd require program"},
	{entry(`id="a"`, `url="ws://x"`, `cwd="x"`), "environment `a` args, env, and cwd require program"},
	{entry(`id="a"`, `url="ws://x"`, `env={}`), "environment `a` args, env, and cwd require program"},
	{entry(`id="a"`, `program="p"`, `auth_bearer_token="x"`, `connect_timeout_sec=1`), "environment `a` auth_bearer_token requires url"},
	{entry(`id="a"`, `program=""`, `connect_timeout_sec=3`), "environment `a` connect_timeout_sec requires url"},
	{entry(`id="a"`, `program=" "`), "environment `a` program cannot be empty"},
	{entry(`id="a"`, `url=" "`), "environment url cannot be empty"},
	{entry(`id="a"`, `url="http://x"`), "environment url `http://x` must use ws:// or wss://"},
	{entry(`id="a"`, `url="WS://x"`), "environment url `WS://x` must use ws:// or wss://"},
	{entry(`id="a"`, `url="ws://"`), "environment url `ws://` is invalid"},
	{entry(`id="a"`, `url="ws://a b"`), "environment url `ws://a b` is invalid"},
	{entry(`id="a"`, `url="ws:///path"`), "environment url `ws:///path` is invalid"},
	{entry(`id="a"`, `url="ws://[::1"`), "environment url `ws://[::1` is invalid"},
	{entry(`id="a"`, `url="ws://127.0.0.1:1"`, `auth_bearer_token="a\nb"`), "environment `a` auth_bearer_token has control characters"},
	{"default=\"\"\n" + entry(`id="a b"`, `url="ws://x"`), "environment id `a b` must contain only ASCII letters, numbers, '-' or '_'"},
}

func entry(lines ...string) string {
	return "[[environments]]\n" + strings.Join(lines, "\n") + "\n"
}

func TestBadConfiguration(t *testing.T) {
	for _, test := range badConfigs {
		configure(t, test.file)
		_, err := environments.Open(t.Context(), "a", nil)
		if !errors.As(err, new(*environments.ConfigError)) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s:\n got %v\nwant %s", test.file, err, test.want)
		}
	}
	home := configure(t, "[[environments]\n")
	_, err := environments.Open(t.Context(), "a", nil)
	if want := "cannot read " + home; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("no TOML: %v", err)
	}
	home = configure(t, "")
	if err := os.Mkdir(filepath.Join(home, "environments.toml"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err = environments.Open(t.Context(), "a", nil)
	if err == nil || !strings.HasSuffix(err.Error(), "environments.toml: is a directory (os error 21)") {
		t.Errorf("a directory: %v", err)
	}
	t.Setenv("CODEX_HOME", "/no/such/home")
	if _, err := environments.Open(t.Context(), "", nil); err == nil || err.Error() != `CODEX_HOME points to "/no/such/home", but that path does not exist` {
		t.Errorf("no home: %v", err)
	}
}

// The released client refuses the same files.
func TestBadConfigurationAsCodex(t *testing.T) {
	program := testkit.Codex(t)
	for _, test := range badConfigs {
		home := configure(t, test.file)
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		command := exec.CommandContext(ctx, program, "exec", "--skip-git-repo-check", "hi")
		command.Env = append(os.Environ(), "CODEX_HOME="+home)
		out, _ := command.CombinedOutput()
		cancel()
		if !strings.Contains(string(out), "Error: exec-server protocol error: ") {
			t.Errorf("%s:\n%.500s", test.file, out)
		}
	}
}

func TestOpen(t *testing.T) {
	t.Setenv("EXEC_SERVER_TEST_MARK", "inherited")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("correct horse battery"), 0o600); err != nil {
		t.Fatal(err)
	}
	authenticator, err := server.NewAuthenticator(server.AuthConfig{TokenFile: secret})
	if err != nil {
		t.Fatal(err)
	}
	url := serve(t, &server.Options{Auth: authenticator})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := "default = \"box\"\n" +
		entry(`id = "box"`, fmt.Sprintf("url = %q", url), `auth_bearer_token = "correct horse battery"`, "connect_timeout_sec = 10", "initialize_timeout_sec = 9.5") +
		entry(`id = "child"`, fmt.Sprintf("program = %q", self), `cwd = "work"`, fmt.Sprintf(`env = { %s = "1", EXEC_SERVER_TEST_A = "b" }`, serveVariable)) +
		entry(`id = "wrong"`, fmt.Sprintf("url = %q", url)) +
		entry(`id = "slow"`, fmt.Sprintf("url = %q", url), `auth_bearer_token = "correct horse battery"`, "connect_timeout_sec = 0")
	home := configure(t, file)
	if err := os.Mkdir(filepath.Join(home, "work"), 0o700); err != nil {
		t.Fatal(err)
	}
	say := func(name, script string) string {
		t.Helper()
		env, err := environments.Open(t.Context(), name, nil)
		if err != nil {
			t.Errorf("%q: %v", name, err)
			return ""
		}
		defer env.Close()
		out, err := env.Command(t.Context(), "sh", "-c", script).Output()
		if err != nil {
			t.Errorf("%q: %v", name, err)
		}
		return strings.TrimSpace(string(out))
	}
	for _, name := range []string{"", "box", "local"} {
		if got := say(name, "echo hi"); got != "hi" {
			t.Errorf("%q: %q", name, got)
		}
	}
	work, err := filepath.EvalSymlinks(filepath.Join(home, "work"))
	if err != nil {
		t.Fatal(err)
	}
	if got := say("child", "echo $EXEC_SERVER_TEST_A $EXEC_SERVER_TEST_MARK; pwd"); got != "b inherited\n"+work {
		t.Errorf("child: %q", got)
	}
	if _, err := environments.Open(t.Context(), "wrong", nil); !errors.As(err, new(*client.DialError)) {
		t.Errorf("no token: %v", err)
	}
	if _, err := environments.Open(t.Context(), "slow", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no time: %v", err)
	}
	if _, err := environments.Open(t.Context(), "nope", nil); err == nil || !strings.Contains(err.Error(), "; the environments are local, box, child, wrong and slow") {
		t.Errorf("unknown: %v", err)
	}
	if _, err := environments.Open(t.Context(), "none", nil); !errors.Is(err, environments.ErrNone) {
		t.Errorf("none: %v", err)
	}
}

func TestOpenDefaults(t *testing.T) {
	url := serve(t, &server.Options{Version: "remote"})
	for _, test := range []struct {
		file, variable, name string
		want                 string // version, or the beginning of the error
	}{
		{"", "", "", "local"},
		{"", "  ", "local", "local"},
		{"", "", "remote", "environment `remote` is not configured in environments.toml or CODEX_EXEC_SERVER_URL; the only environment is local"},
		{"", " " + url + " ", "", "remote"},
		{"", url, "remote", "remote"},
		{"", url, "local", "environment `local` is not configured in CODEX_EXEC_SERVER_URL; the only environment is remote"},
		{"", " NONE ", "", environments.ErrNone.Error()},
		{"include_local = true", url, "", "local"},
		{"include_local = false", url, "", environments.ErrNone.Error()},
		{"include_local = false", url, "local", "environment `local` is not configured"},
		{"default = \" None \"", "", "", environments.ErrNone.Error()},
		{entry(`id = "Local"`, fmt.Sprintf("url = %q", url)), "", "Local", "remote"},
		{"default = \" a \"\n" + entry(`id = "a"`, fmt.Sprintf("url = %q", " "+url+" ")), "", "", "remote"},
	} {
		configure(t, test.file)
		t.Setenv("CODEX_EXEC_SERVER_URL", test.variable)
		var got string
		env, err := environments.Open(t.Context(), test.name, nil)
		switch {
		case err != nil:
			got = err.Error()
		case env.Info().Version == "remote":
			got = "remote"
		default:
			got = "local"
		}
		if env != nil {
			_ = env.Close()
		}
		if !strings.HasPrefix(got, test.want) {
			t.Errorf("%+v: %s", test, got)
		}
	}
}

func TestNames(t *testing.T) {
	box := entry(`id = "box"`, `url = "ws://127.0.0.1:1"`)
	for _, test := range []struct {
		file, variable string
		want           []string
		byDefault      string
	}{
		{"", "", []string{"local"}, "local"},
		{"", "ws://127.0.0.1:1", []string{"remote"}, "remote"},
		{"", "none", nil, "none"},
		{box, "", []string{"local", "box"}, "local"},
		{"include_local = false\ndefault = \"box\"\n" + box, "", []string{"box"}, "box"},
	} {
		configure(t, test.file)
		t.Setenv("CODEX_EXEC_SERVER_URL", test.variable)
		names, byDefault, err := environments.Names()
		if err != nil || !slices.Equal(names, test.want) || byDefault != test.byDefault {
			t.Errorf("%+v: %q, %q, %v", test, names, byDefault, err)
		}
	}
	configure(t, "default = 1")
	if _, _, err := environments.Names(); err == nil {
		t.Error("a bad configuration has names")
	}
}

// TestMachines names machines of gateways, in all ways, and looks at what they lead to.
func TestMachines(t *testing.T) {
	file := entry(`id="lab"`, `url="wss://lab:8765/any?label=old"`, `auth_bearer_token="secret"`, `connect_timeout_sec=3`) +
		entry(`id="below"`, `url="ws://proxy/below/env/box-1?token=t"`) +
		entry(`id="bare"`, `url=" ws://bare:1 "`) +
		entry(`id="program"`, `program="ssh"`)
	const twice = "has an environment `fleet`, and EXEC_SERVER_GATEWAY names a gateway, too"
	for _, row := range []struct{ file, gateway, name, want string }{
		{file, "", "lab/box-7", "wss://lab:8765/env/box-7"},
		{file, "", "lab/any", "wss://lab:8765/any"},
		{file, "", "lab/label=gpu", "wss://lab:8765/any?label=gpu"},
		{file, "", "lab/label=gpu=h100,label=zone=a,b", "wss://lab:8765/any?label=gpu%3Dh100&label=zone%3Da%2Cb"},
		{file, "", "below/box-7", "ws://proxy/below/env/box-7?token=t"},
		{file, "", "below/label=gpu", "ws://proxy/below/any?label=gpu&token=t"},
		{file, "", "bare/local", "ws://bare:1/env/local"},
		{file, "wss://gate/", "fleet/box-7", "wss://gate/env/box-7"},
		{"", "ws://gate", "fleet/any", "ws://gate/any"},
		{file, "", "lab/", "lab/: name the machine behind the slash"},
		{file, "", "lab/a/b", "a machine has a name of"},
		{file, "", "lab/a?b", "a machine has a name of"},
		{file, "", "lab/" + strings.Repeat("a", 65), "a machine has a name of"},
		{file, "", "/box-7", "environment `` is not configured"},
		{file, "", "bax/box-7", "environment `bax` is not configured"},
		{file, "", "local/box-7", "local is this machine, and no gateway"},
		{file, "", "program/box-7", "has a program, and not the URL of a gateway"},
		{file, "", "fleet/box-7", "EXEC_SERVER_GATEWAY names, and that is not set"},
		{file, "http://gate", "fleet/box-7", "EXEC_SERVER_GATEWAY must be ws://HOST:PORT or wss://HOST:PORT"},
		{file, "ws://me:hidden@gate", "fleet/box-7", "EXEC_SERVER_GATEWAY must be ws://HOST:PORT or wss://HOST:PORT"},
		{entry(`id="fleet"`, `url="ws://ours"`), "", "fleet/box-7", "ws://ours/env/box-7"},
		{entry(`id="fleet"`, `url="ws://ours"`), "ws://gate", "fleet/box-7", twice},
		{entry(`id="fleet"`, `url="ws://ours"`), "ws://gate", "fleet", "ws://ours"},
	} {
		configure(t, row.file)
		t.Setenv("EXEC_SERVER_GATEWAY", row.gateway)
		t.Setenv("EXEC_SERVER_GATEWAY_TOKEN_FILE", "its token")
		found, err := environments.Find(row.name)
		if err != nil {
			if _, openErr := environments.Open(t.Context(), row.name, nil); openErr == nil || openErr.Error() != err.Error() {
				t.Errorf("%s: Open says %v, and Find %v", row.name, openErr, err)
			}
			if !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), "hidden") {
				t.Errorf("%s: %v", row.name, err)
			}
			continue
		}
		if found.URL != row.want || found.Name != row.name {
			t.Errorf("%s leads to %s as %s, not to %s", row.name, found.URL, found.Name, row.want)
		}
		ofVariable := row.gateway != "" && row.name != "fleet"
		if (found.Source == "EXEC_SERVER_GATEWAY") != ofVariable || (found.Options.TokenFile == "its token") != ofVariable {
			t.Errorf("%s: of %s, with the token in %q", row.name, found.Source, found.Options.TokenFile)
		}
		if ofLab := strings.HasPrefix(row.name, "lab/"); ofLab != (found.Token == "secret") || ofLab != (found.Options.ConnectTimeout == 3*time.Second) {
			t.Errorf("%s: token %q, timeout %s", row.name, found.Token, found.Options.ConnectTimeout)
		}
	}
}
