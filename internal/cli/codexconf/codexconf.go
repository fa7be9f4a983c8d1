// Package codexconf edits environments.toml, the file in which Codex finds machines. It also
// knows the versions of Codex that read the file.
package codexconf

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"execserver/client/environments"
	"execserver/internal/cli"
)

// options are the flags of codex-config.
type options struct {
	id, tokenFile, program string
}

// Command returns the command codex-config.
func Command() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:     "codex-config [flags] URL|DESTINATION",
		Short:   "Add machines to Codex's configuration",
		GroupID: cli.GroupSetUp,
		Long: "codex-config prints an entry for Codex's environments.toml, which is in ~/.codex or in $CODEX_HOME.\n" +
			"\"codex-config add\" writes the entry into the file. An entry makes a machine available to Codex and\n" +
			"--on under a name. A URL is the address of a server that listens; for an ssh DESTINATION, ssh starts\n" +
			"a server for each client. codex-config does not connect.",
		Example: "  exec-server codex-config add box --ssh box\n" +
			"  exec-server codex-config ws://10.0.0.7:8765 --token-file token    # only prints the entry\n" +
			"  exec-server codex-config me@box.example --program /opt/bin/exec-server",
		Args: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.NewUsageError(errors.New("name a URL, such as ws://10.0.0.7:8765, or a destination of ssh, such as me@box.example"), command)
			}
			return cli.NoArgs(command, args[1:])
		},
		RunE: func(command *cobra.Command, args []string) error {
			if args[0] == "list" || args[0] == "ls" {
				return cli.NewUsageError(fmt.Errorf("exec-server doctor --all lists the machines; for a host of the name %s, write ssh://%[1]s", args[0]), command)
			}
			text, err := o.entry(args[0])
			if err != nil {
				return cli.NewUsageError(err, command)
			}
			_, err = io.WriteString(command.OutOrStdout(), text)
			return err
		},
	}
	f := command.Flags()
	f.StringVar(&o.id, "id", "", "`NAME` of the machine: letters, digits, - and _; by default that of the host")
	f.StringVar(&o.tokenFile, "token-file", "", "for a URL: copy the bearer token from this `FILE` into the entry")
	f.StringVar(&o.program, "program", "exec-server", "for ssh: `PATH` of exec-server on the machine")
	command.AddCommand(newAddCommand(), newRemoveCommand())
	return command
}

// entry returns the text for environments.toml.
func (o *options) entry(destination string) (string, error) {
	scheme, _, isURL := strings.Cut(destination, "://")
	if err := checkDestination(destination); err != nil {
		return "", err
	}
	host, err := hostOf(destination, isURL)
	if err != nil {
		return "", err
	}
	id := o.id
	if id == "" {
		id = idFrom(host)
	}
	if !environments.IsName(id) {
		return "", cli.InvalidValue("id", id, "expected letters, digits, - and _, at most 64, and neither local nor none")
	}
	if !isURL || scheme == "ssh" {
		if o.tokenFile != "" {
			return "", errors.New("--token-file is for a URL; ssh authenticates by itself")
		}
		args := []string{"-o", "BatchMode=yes", destination, quoteProgram(o.program), "--listen", "stdio"}
		return programEntry(id, append([]string{"ssh"}, args...)), nil
	}
	lines := []string{"[[environments]]", "id = " + quoteTOML(id), "url = " + quoteTOML(destination)}
	if o.tokenFile != "" {
		token, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return "", fmt.Errorf("read the bearer token: %w", err)
		}
		lines = append(lines, "auth_bearer_token = "+quoteTOML(strings.TrimSpace(string(token))))
	}
	return strings.Join(lines, "\n") + "\n", nil
}

// checkDestination refuses everything but a URL that Codex supports and a destination of ssh.
func checkDestination(destination string) error {
	scheme, _, isURL := strings.Cut(destination, "://")
	switch {
	case strings.ContainsFunc(destination, func(r rune) bool { return r <= ' ' || r == 0x7F }), destination == "", destination[0] == '-':
		return fmt.Errorf("%q is neither a URL nor a destination of ssh", destination)
	case scheme == "unix" && isURL:
		return errors.New("codex does not connect to unix sockets; have it start a server by ssh, or listen on ws://localhost:PORT")
	case isURL && scheme != "ws" && scheme != "wss" && scheme != "ssh":
		return fmt.Errorf("unsupported URL %q; expected ws://HOST:PORT, wss://HOST:PORT or ssh://HOST", destination)
	}
	_, err := hostOf(destination, isURL)
	return err
}

// hostOf returns the host of a URL or of a destination of ssh.
func hostOf(destination string, isURL bool) (string, error) {
	if !isURL {
		_, host, found := strings.Cut(destination, "@")
		if !found {
			host = destination
		}
		if name, port, found := strings.Cut(host, ":"); found && !strings.Contains(port, ":") { // several colons are an IPv6 address
			return "", fmt.Errorf("%q is not a destination of ssh; say ws://%s for a server there, or ssh://%s:PORT for ssh", destination, host, strings.TrimSuffix(destination, host)+name)
		}
		return host, nil
	}
	u, err := url.Parse(destination)
	if err != nil || u.Hostname() == "" {
		return "", fmt.Errorf("%q has no host", destination)
	}
	return u.Hostname(), nil
}

// idFrom makes an id from a host: the first part of its name, or its whole address.
func idFrom(host string) string {
	if _, err := netip.ParseAddr(host); err != nil {
		host, _, _ = strings.Cut(host, ".")
	}
	id := strings.Trim(strings.Map(func(r rune) rune {
		if r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_') {
			return r
		}
		return '-'
	}, host), "-")
	if !environments.IsName(id) {
		return "box" // local, for example, is reserved
	}
	return id
}

// quoteTOML quotes a string.
func quoteTOML(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7F:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// quoteProgram quotes the path of a program for the shell that ssh starts, except a leading ~/,
// which the shell expands.
func quoteProgram(path string) string {
	if plain := strings.NewReplacer("~", "", "$", "").Replace(path); cli.QuoteShell(plain) == plain {
		return path
	}
	return cli.QuoteShell(path)
}
