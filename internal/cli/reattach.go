package cli

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"execserver/client"
	"execserver/client/environments"
)

// unnamed stands for the unknown name of a machine.
const unnamed = "NAME"

// ReattachHint returns the command line that attaches to a session with these arguments, after
// an introduction such as "come back with". info describes the machine of the session.
func (m *Machine) ReattachHint(info *client.Info, how string, args ...string) string {
	name := unnamed
	if environments.IsNameOfMachine(info.Machine) {
		name = info.Machine
	}
	flags, list, chosen := m.chosen(name)
	if !chosen {
		flags = m.given()
	}
	words := []string{"exec-server attach" + flagWords(flags)}
	for _, arg := range args {
		words = append(words, QuoteShell(Printable(arg))) // a server may have named the session
	}
	attach := strings.Join(words, " ")
	if !chosen || name != unnamed {
		return how + ": " + attach
	}
	// A machine of an older release does not announce its name.
	return how + " (NAME is the machine that the gateway has chosen): " + attach +
		"\nfind it with: exec-fleet ls" + flagWords(list) + ", and exec-server ps" + flagWords(flags)
}

// flagWords returns flags and values quoted for a shell, each after a space.
func flagWords(flags [][2]string) string {
	var text strings.Builder
	for _, flag := range flags {
		text.WriteString(" " + flag[0] + " " + QuoteShell(flag[1]))
	}
	return text.String()
}

// ExplainChoice adds to ErrNoTarget that a gateway has chosen the machine, if it has.
func (m *Machine) ExplainChoice(err error) error {
	attach, _, chosen := m.chosen(unnamed)
	if !chosen || !errors.Is(err, ErrNoTarget) {
		return err
	}
	return fmt.Errorf("%w; the gateway chose this machine now; name the right one with%s", err, flagWords(attach[:1]))
}

// chosen reports whether a gateway chooses the machine, possibly another one each time. attach
// holds the flags that lead to a machine of the gateway by its name, and list those of
// exec-fleet ls.
func (m *Machine) chosen(machine string) (attach, list [][2]string, ok bool) {
	address, name, tokenFile := m.URL, "", m.TokenFile
	byVariable := false
	switch {
	case m.On == ThisMachine:
		return nil, nil, false
	case m.URL == "":
		found, err := environments.Find(m.On)
		if err != nil {
			return nil, nil, false
		}
		address, name = found.URL, found.Name
		byVariable = found.Source == environments.GatewayVariable
		if found.Token != "" {
			tokenFile = "FILE" // exec-fleet ls reads no environments.toml
		}
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "ws" && u.Scheme != "wss" {
		return nil, nil, false
	}
	path, ok := strings.CutSuffix(strings.TrimSuffix(u.Path, "/"), "/any")
	if !ok {
		return nil, nil, false
	}
	u.RawPath, u.Path, u.RawQuery = "", path, ""
	if !byVariable {
		list = append(list, [2]string{"--gateway", u.String()})
	}
	if tokenFile != "" {
		list = append(list, [2]string{"--token-file", tokenFile})
	}
	if name != "" {
		gateway, _, _ := strings.Cut(name, "/")
		attach = append(attach, [2]string{"--on", gateway + "/" + machine})
	} else {
		attach = append(attach, [2]string{"--url", u.JoinPath("env", machine).String()})
	}
	if m.TokenFile != "" {
		attach = append(attach, [2]string{"--token-file", m.TokenFile})
	}
	return attach, list, true
}
