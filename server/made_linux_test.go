package server_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestMadeForToken asks for sandboxes in which something missing cannot be written, for
// which it has to be made, with tokens for some commands and for any.
func TestMadeForToken(t *testing.T) {
	inside, outside := realTempDir(t), realTempDir(t)
	protected := outside + "/protected"
	for _, dir := range []string{outside + "/etc", protected, protected + "/.git", protected + "/.agents", protected + "/.codex", protected + "/.aws"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	empty := protected + "/empty" // as what is made is
	if err := errors.Join(os.Mkdir(empty, 0o700), os.Chmod(empty, 0o555)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside+"/etc", inside+"/link"); err != nil {
		t.Fatal(err)
	}
	const commands = "scope = [\"exec\"]\ncommands = [[\"/bin/ls\", \"-d\", \"...\"]]\n"
	as := serveTokens(t, confiningOptions(t), map[string]string{
		"some":     commands + fmt.Sprintf("directory = %q", inside),
		"anywhere": commands,
		"any":      fmt.Sprintf("scope = [\"exec\"]\ndirectory = %q", inside),
		"confined": commands + fmt.Sprintf("[token.sandbox]\nread = [\"/\"]\nwrite = [%q]", inside),
	})
	slashTmp := entries(map[string]string{inside: "read"})
	files := slashTmp["permissions"].(params)["file_system"].(params)
	files["entries"] = append(files["entries"].([]params), params{"path": params{"type": "special", "value": params{"kind": "slash_tmp"}}, "access": "write"})
	below := "allow that below " + inside + " alone"
	for i, row := range []struct {
		token   string
		sandbox params
		look    string // for what the command looks
		want    string // what it finds, or why it is not started
	}{
		{"some", entries(map[string]string{inside: "write", inside + "/nologin": "deny"}), inside + "/nologin", inside + "/nologin\n"},
		{"some", entries(map[string]string{inside: "write"}), inside + "/.git", inside + "/.git\n"},
		{"some", entries(map[string]string{inside: "read", outside + "/etc": "write", outside + "/etc/nologin": "deny"}), outside + "/etc/nologin", below},
		{"some", entries(map[string]string{inside: "read", outside + "/etc": "write", outside + "/etc/nologin": "read"}), outside + "/etc/nologin", below},
		{"some", entries(map[string]string{inside: "read", outside + "/etc": "write"}), outside + "/etc/.git", below},
		{"some", entries(map[string]string{inside: "read", inside + "/link": "write"}), outside + "/etc/.git", below},
		{"some", entries(map[string]string{inside: "read", protected: "write", empty: "read"}), empty, empty + "\n"},
		{"some", slashTmp, "/tmp", "/tmp\n"},
		{"anywhere", entries(map[string]string{inside: "write"}), inside + "/.git", "have no directory in which that is allowed"},
		{"anywhere", entries(map[string]string{"/": "read"}), inside, inside + "\n"},
		{"any", entries(map[string]string{inside: "read", outside + "/etc": "write"}), outside + "/etc/.git", outside + "/etc/.git\n"},
		{"confined", nil, inside + "/.git", inside + "/.git\n"},
		{"confined", entries(map[string]string{"/": "read", outside + "/etc": "write"}), inside, inside + "\n"},
	} {
		c, id := newCaller(t, as(row.token), ""), fmt.Sprint(i)
		p := params{"processId": id, "argv": []string{"/bin/ls", "-d", row.look}, "cwd": inside, "env": params{}, "tty": false}
		if row.sandbox != nil {
			p["sandbox"] = row.sandbox
		}
		r, text := c.call("process/start", p), ""
		if r.Error != nil {
			text = r.Error.Message
		} else {
			text = c.outputOf(id)
		}
		if started := strings.HasSuffix(row.want, "\n"); started && text != row.want || !strings.Contains(text, row.want) {
			t.Errorf("%d: %s looks for %s: got %q, want %q", i, row.token, row.look, text, row.want)
		}
	}
	if _, err := os.Lstat(empty); err != nil {
		t.Errorf("what was there before is removed: %v", err)
	}
}
