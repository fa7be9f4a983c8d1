package server_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"execserver/internal/sandbox"
)

// TestTokenTellsNothingOfOutside has clients, confined by their tokens, ask for directories and for
// sandboxes of their own that name files outside. The answers must not depend on what is there.
func TestTokenTellsNothingOfOutside(t *testing.T) {
	root, outside := realTempDir(t), realTempDir(t)
	names := []string{"missing", "missing/below", "file", "file/below", "dir", "dir/below", "link", "loop", "repository"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(outside+"/dir", 0o700))
	must(os.WriteFile(outside+"/file", nil, 0o700))
	must(os.Symlink("dir", outside+"/link"))
	must(os.Symlink("loop", outside+"/loop"))
	must(os.Mkdir(outside+"/repository", 0o700))
	must(os.WriteFile(outside+"/repository/.git", []byte("gitdir: ../loop\n"), 0o600))
	// The most links that a path may have, which lead outside.
	for _, name := range names {
		flat := "to-" + strings.ReplaceAll(name, "/", "-")
		must(os.MkdirAll(root+"/chain", 0o700))
		target := outside + "/" + name
		for i := range 40 {
			link := fmt.Sprintf("%s/chain/%s-%d", root, flat, i)
			must(os.Symlink(target, link))
			target = link
		}
		must(os.MkdirAll(root+"/git/"+flat, 0o700))
		must(os.WriteFile(root+"/git/"+flat+"/.git", []byte("gitdir: ../../chain/"+flat+"-39\n"), 0o600))
	}
	as := serveTokens(t, confiningOptions(t), map[string]string{
		"confined": fmt.Sprintf("scope = [\"exec\"]\n[token.sandbox]\nread = [\"/usr\", \"/bin\", \"/lib\", \"/lib64\"]\nwrite = [%q]", root),
		"placed":   fmt.Sprintf("scope = [\"exec\"]\ndirectory = %q", root),
	})
	entry := func(path, access string) params {
		return params{"path": params{"type": "path", "path": "file://" + path}, "access": access}
	}
	policy := func(entries ...params) params {
		return params{
			"permissions": params{
				"type": "managed", "network": "restricted", "file_system": params{"type": "restricted", "entries": entries},
			},
			"cwd": "file://" + root, "workspaceRoots": []string{}, "windowsSandboxLevel": "disabled",
		}
	}
	all := entry("/", "read")
	for kind, ask := range map[string]func(path, flat string) (token, cwd string, sandbox any){
		"directory of the token": func(path, _ string) (string, string, any) { return "placed", path, nil },
		"read in written": func(path, _ string) (string, string, any) {
			return "confined", root, policy(all, entry(root, "write"), entry(outside, "write"), entry(path, "read"))
		},
		"denied in written": func(path, _ string) (string, string, any) {
			return "confined", root, policy(all, entry("/", "write"), entry(path, "deny"))
		},
		"written": func(path, _ string) (string, string, any) {
			return "confined", root, policy(all, entry(root, "write"), entry(outside, "write"), entry(path, "write"))
		},
		"through links": func(_, flat string) (string, string, any) {
			return "confined", root, policy(all, entry(root+"/chain/"+flat+"-39", "deny"))
		},
		"git": func(_, flat string) (string, string, any) {
			return "confined", root, policy(all, entry(root+"/git/"+flat, "write"))
		},
	} {
		t.Run(kind, func(t *testing.T) {
			answers := make(map[string][]string)
			for i, name := range names {
				flat := "to-" + strings.ReplaceAll(name, "/", "-")
				token, cwd, sandbox := ask(outside+"/"+name, flat)
				c := newCaller(t, as(token), "")
				r := c.call("process/start", params{
					"processId": fmt.Sprint("p", i), "argv": []string{"/bin/true"}, "cwd": cwd, "env": params{}, "tty": false, "sandbox": sandbox,
				})
				text := "started"
				if r.Error != nil {
					text = fmt.Sprint(r.Error.Code, " ", strings.ReplaceAll(r.Error.Message, outside+"/"+name, "SENT"))
				}
				text = strings.ReplaceAll(text, flat, "SENT") // the part that differs of what this client has sent
				answers[text] = append(answers[text], name)
			}
			if len(answers) != 1 {
				t.Errorf("the answers differ: %q", answers)
			}
		})
	}
}

// TestHiddenTellsNothing asks for files in a directory that every sandbox hides, with a token that
// lets everything else be read. The answers must not depend on what is there.
func TestHiddenTellsNothing(t *testing.T) {
	root, hidden := realTempDir(t), realTempDir(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(hidden+"/dir", 0o700))
	must(os.WriteFile(hidden+"/file", nil, 0o600))
	must(os.Symlink(root, hidden+"/link"))
	names := []string{"missing", "missing/below", "dir", "dir/below", "file", "link", "dir/../.." + root, "missing/../.." + root}
	for i, name := range names {
		must(os.Symlink(hidden+"/"+name, fmt.Sprintf("%s/to-%d", root, i)))
	}
	as := serveTokens(t, confiningWith(t, sandbox.Options{StateDir: hidden}), map[string]string{
		"reader": fmt.Sprintf("scope = [\"full\"]\n[token.sandbox]\nread = [\"/\"]\nwrite = [%q]", root),
	})
	c := newCaller(t, as("reader"), "")
	id := 0
	for _, method := range []string{
		"fs/watch", "fs/watchMissing", "fs/readFile", "fs/open", "fs/getMetadata", "fs/readDirectory", "fs/canonicalize", "fs/readLink",
	} {
		for kind, ask := range map[string]func(i int) string{
			"path": func(i int) string { return hidden + "/" + names[i] },
			"link": func(i int) string { return fmt.Sprintf("%s/to-%d/.", root, i) },
		} {
			if kind == "link" && method == "fs/readLink" {
				continue // it reads the link itself
			}
			answers := make(map[string][]string)
			for i, name := range names {
				if kind == "path" && strings.Contains(name, "..") {
					continue // a URI has no such segments
				}
				p := params{"path": "file://" + ask(i), "watchId": fmt.Sprint(kind, i), "handleId": fmt.Sprint(kind, i), "followSymlinks": true}
				if method == "fs/watchMissing" {
					id++
					p = params{"watchId": id, "missing": []string{"file://" + ask(i)}}
				}
				r := c.call(method, p)
				text := string(r.Result)
				if r.Error != nil {
					text = fmt.Sprint(r.Error.Code, " ", r.Error.Message)
				}
				answers[text] = append(answers[text], name)
			}
			if len(answers) != 1 {
				t.Errorf("%s, %s: the answers differ: %q", method, kind, answers)
			}
		}
	}
}
