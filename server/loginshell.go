package server

import (
	"bufio"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"execserver/protocol"
)

// loginShell returns the account's shell, or one from the search path if that is unusable.
// Clients know only some names and use a shell of their own machine for others, so loginShell
// reports a POSIX shell with another name as "sh".
var loginShell = sync.OnceValue(func() protocol.Shell {
	if runtime.GOOS == "windows" {
		return windowsShell()
	}
	if path := accountShell(); usableShell(path) {
		return protocol.Shell{Name: shellName(path), Path: path}
	}
	for _, name := range []string{"bash", "zsh", "sh"} {
		if path, err := exec.LookPath(name); err == nil && filepath.IsAbs(path) {
			return protocol.Shell{Name: name, Path: path}
		}
	}
	return protocol.Shell{Name: "sh", Path: "/bin/sh"}
})

// setDefaultShell sets SHELL in the environment of a process on a terminal if it is missing,
// because programs there start it.
func setDefaultShell(env map[string]string) {
	if _, ok := env["SHELL"]; !ok {
		env["SHELL"] = loginShell().Path
	}
}

func windowsShell() protocol.Shell {
	for _, name := range []string{"pwsh", "powershell"} {
		if path, err := exec.LookPath(name); err == nil {
			return protocol.Shell{Name: "powershell", Path: path}
		}
	}
	return protocol.Shell{Name: "cmd", Path: os.Getenv("ComSpec")}
}

func shellName(path string) string {
	switch name := filepath.Base(path); name {
	case "bash", "zsh":
		return name
	}
	return "sh"
}

// usableShell refuses the programs that keep an account from logging in, and shells that
// do not understand the clients' commands.
func usableShell(path string) bool {
	switch filepath.Base(path) {
	case "bash", "zsh", "sh", "dash", "ash", "ksh", "mksh", "busybox":
	default:
		return false
	}
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// accountShell finds the account in the user database, because package user does not
// report the shell.
func accountShell() string {
	account, err := user.Current()
	if err != nil {
		return ""
	}
	f, err := os.Open("/etc/passwd")
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) == 7 && fields[2] == account.Uid {
			return fields[6]
		}
	}
	return ""
}
