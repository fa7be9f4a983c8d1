package server_test

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"execserver/protocol"
)

// entries is a sandbox without a network in which programs run and paths have an
// access: "read", "write" or "deny".
func entries(access map[string]string) params {
	list := []params{{"path": params{"type": "special", "value": params{"kind": "minimal"}}, "access": "read"}}
	for path, access := range access {
		list = append(list, params{"path": params{"type": "path", "path": "file://" + path}, "access": access})
	}
	return params{
		"permissions": params{"type": "managed", "network": "restricted", "file_system": params{"type": "restricted", "entries": list}},
		"cwd":         "file:///", "workspaceRoots": []string{}, "windowsSandboxLevel": "disabled",
	}
}

// tokenEntry is the same as an entry of a tokens file.
func tokenEntry(access map[string]string) string {
	text := "scope = [\"full\"]\n[token.sandbox]\n"
	for _, word := range []string{"read", "write", "deny"} {
		var paths []string
		for path, access := range access {
			if access == word {
				paths = append(paths, fmt.Sprintf("%q", path))
			}
		}
		text += word + " = [" + strings.Join(paths, ", ") + "]\n"
	}
	return text
}

// runOutput runs a script, and returns what it writes, or why it was not started.
func (c *caller) runOutput(id, script string, sandbox any) string {
	c.t.Helper()
	r := c.call("process/start", params{
		"processId": id, "argv": []string{"/bin/sh", "-c", script}, "cwd": "/", "env": params{}, "tty": false, "sandbox": sandbox,
	})
	if r.Error != nil {
		return r.Error.Message
	}
	return c.outputOf(id)
}

// outputOf waits for the end of a process, and returns its output.
func (c *caller) outputOf(id string) string {
	c.t.Helper()
	c.result("process/wait", params{"processId": id}, new(struct{}))
	var output struct{ Chunks []struct{ Chunk []byte } }
	c.result("process/read", params{"processId": id, "afterSeq": 0, "waitMs": 0}, &output)
	var text strings.Builder
	for _, chunk := range output.Chunks {
		text.Write(chunk.Chunk)
	}
	return text.String()
}

// TestSandboxWithinThatOfToken asks for sandboxes with tokens that force another one:
// what can be read, written and made is what both let be, whatever they are made of.
func TestSandboxWithinThatOfToken(t *testing.T) {
	root := realTempDir(t)
	for _, dir := range []string{"/a/b/c", "/a/d", "/e", "/l"} {
		if err := os.MkdirAll(root+dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var script strings.Builder
	for _, dir := range []string{"", "/a", "/a/b", "/a/b/c", "/a/d", "/e"} {
		if err := os.WriteFile(root+dir+"/f", []byte("x\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&script, "cd / && d=%s && { read x <$d/f; } 2>&- && echo read $d; { true >>$d/f; } 2>&- && echo write $d; mkdir $d/new 2>&- && rmdir $d/new && echo make $d\n", root+dir)
	}
	if err := os.Symlink("../a/b", root+"/l/link"); err != nil {
		t.Fatal(err)
	}
	// Some are denied although they do not exist, one leads over a link.
	paths := []string{"", "/a", "/a/b", "/a/b/c", "/a/b/new", "/a/d", "/a/new", "/e", "/e/f", "/e/new", "/l/link", "/l/link/c"}
	random := rand.New(rand.NewPCG(1, 2))
	policies := func() (made []map[string]string) {
		for range 5 {
			policy := make(map[string]string)
			if random.IntN(2) == 0 {
				policy["/"] = "read"
			}
			for _, path := range paths {
				if word := []string{"", "", "read", "write", "write", "deny"}[random.IntN(6)]; word != "" && (path != "" || word != "deny") {
					policy[root+path] = word
				}
			}
			if policy[root] == "write" {
				delete(policy, root+"/l/link") // which could be changed in there
				delete(policy, root+"/l/link/c")
			}
			made = append(made, policy)
		}
		return made
	}
	ofTokens, asked := policies(), policies()
	tokens := map[string]string{"free": `scope = ["full"]`}
	for i, policy := range ofTokens {
		tokens[fmt.Sprint("token", i)] = tokenEntry(policy)
	}
	as := serveTokens(t, confiningOptions(t), tokens)
	free := newCaller(t, as("free"), "")
	lines := func(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") }
	alone := make([][]string, len(asked))
	for i, policy := range asked {
		alone[i] = lines(free.runOutput(fmt.Sprint("alone", i), script.String(), entries(policy)))
	}
	some := 0
	for i := range ofTokens {
		c := newCaller(t, as(fmt.Sprint("token", i)), "")
		forced := lines(c.runOutput("forced", script.String(), nil))
		for j := range asked {
			want := slices.DeleteFunc(slices.Clone(forced), func(line string) bool { return !slices.Contains(alone[j], line) })
			if len(want) == 0 {
				want = []string{""}
			} else if len(want) < len(forced) && len(want) < len(alone[j]) {
				some++
			}
			if got := lines(c.runOutput(fmt.Sprint("both", j), script.String(), entries(asked[j]))); !slices.Equal(got, want) {
				t.Errorf("token %v\nforces %q\nasked %v\nlets %q\nboth let %q\nwant %q", ofTokens[i], forced, asked[j], alone[j], got, want)
			}
		}
	}
	if some == 0 {
		t.Error("no two policies differ in what they let happen; take other ones")
	}
}

// TestWorkspaceOfToken has a client ask for what Codex asks for, with a token that has a
// sandbox: commands and requests about files work in the workspace, and only there.
func TestWorkspaceOfToken(t *testing.T) {
	dir, err := os.MkdirTemp("/var/tmp", "forced-") // not in /tmp, which clients may ask for
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	root, outside := dir+"/root", dir+"/outside"
	for _, dir := range []string{outside, root + "/project/.git", root + "/other"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	as := serveTokens(t, confiningOptions(t), map[string]string{
		"agent": fmt.Sprintf("scope = [\"full\"]\n[token.sandbox]\nread = [\"/\"]\nwrite = [%q]\ndeny = [%q]", root, root+"/project/secret"),
	})
	c := newCaller(t, as("agent"), "")
	special := func(kind, access string) params {
		return params{"path": params{"type": "special", "value": params{"kind": kind}}, "access": access}
	}
	workspace := func(network string) params {
		return params{
			"permissions": params{"type": "managed", "network": network, "file_system": params{"type": "restricted", "entries": []params{
				special("root", "read"), special("project_roots", "write"), special("slash_tmp", "write"), special("tmpdir", "write"),
			}}},
			"cwd": "file://" + root + "/project", "workspaceRoots": []string{"file://" + root + "/project"}, "windowsSandboxLevel": "disabled",
		}
	}
	for network, sandbox := range map[string]params{"restricted": workspace("restricted"), "enabled": workspace("enabled")} {
		script := "for d in " + root + "/project " + root + " " + root + "/other " + root + "/project/.git " + outside + " /tmp; do" +
			" { true >$d/made-here; } 2>&- && rm $d/made-here && echo $d; done; mkdir " + root + "/project/secret 2>&-; ls -A " + root + "/project/secret 2>&-; grep -c : /proc/net/dev"
		// Without a network there is one interface.
		if got, want := c.runOutput(network, script, sandbox), root+"/project\n1\n"; got != want {
			t.Errorf("with the network %s: got %q, want %q", network, got, want)
		}
	}
	content := base64.StdEncoding.EncodeToString([]byte("x"))
	write := func(path string) *protocol.Error {
		return c.call("fs/writeFile", params{"path": path, "dataBase64": content, "sandbox": workspace("restricted")}).Error
	}
	if err := write(root + "/project/f"); err != nil {
		t.Error(err)
	}
	for _, path := range []string{root + "/other/f", root + "/project/.git/config", root + "/project/secret/f", outside + "/f"} {
		if write(path) == nil {
			t.Errorf("%s is written", path)
		}
	}
}
