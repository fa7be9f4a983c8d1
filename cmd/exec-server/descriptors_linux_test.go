package main

import (
	"encoding/base64"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestInheritedDescriptors shows that what the server was started with does not
// reach its processes, whose lives nobody can foresee.
func TestInheritedDescriptors(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	command := exec.Command("exec-server")
	command.ExtraFiles = []*os.File{w} // descriptor 3
	p, err := launch(command, true)
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	c := connect(t, p)
	c.handshake(nil)
	c.call("process/start", object{
		"processId": "p", "cwd": "/", "env": object{"PATH": os.Getenv("PATH")}, "tty": false,
		"argv": []string{"/bin/sh", "-c", "readlink /proc/$$/fd/2; readlink /proc/$$/fd/3; echo end"},
	})
	var output string
	for !strings.HasSuffix(output, "end\n") {
		params := c.receive("method", "process/output")["params"].(object)
		text, err := base64.StdEncoding.DecodeString(params["chunk"].(string))
		if err != nil {
			t.Fatal(err)
		}
		output += string(text)
	}
	if lines := strings.Count(output, "\n"); lines != 2 || !strings.HasPrefix(output, "pipe:") {
		t.Errorf("descriptors 2 and 3 are %q", output)
	}
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 0)
}
