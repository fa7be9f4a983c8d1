package client_test

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"execserver/client"
	"execserver/internal/testkit"
)

// lastWords receives the standard error of a server, and holds its last line up.
type lastWords struct {
	said, heard chan struct{}
}

func (l *lastWords) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("bye")) {
		close(l.said)
		<-l.heard
	}
	return len(b), nil
}

// TestLaunchSparesStrangers has the number of a server that has ended given to a stranger,
// before the client has noticed the end.
func TestLaunchSparesStrangers(t *testing.T) {
	t.Parallel()
	words := &lastWords{make(chan struct{}), make(chan struct{})}
	command := exec.Command("/bin/sh", "-c", "echo bye >&2; exit 3")
	command.Stderr, command.WaitDelay = words, testkit.Patience
	failed := make(chan error, 1)
	go func() {
		_, err := client.Launch(t.Context(), command, nil)
		failed <- err
	}()
	<-words.said
	stranger := testkit.Stranger(t, command.Process.Pid, false)
	close(words.heard)
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("launch: %v", err)
	}
	if !testkit.Unharmed(t, stranger) {
		t.Error("the end of a launched server has killed a stranger")
	}
}
