package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"execserver/client"
	"execserver/client/environments"
	"execserver/internal/cli"
)

// unnamed stands for the name of a machine that is not known.
const unnamed = "NAME"

// comeBack returns a line that says how to attach to a session, with these arguments. how
// begins it: "come back with". info is of the machine that has the session.
func (w *where) comeBack(info *client.Info, how string, args ...string) string {
	name := unnamed
	if environments.IsNameOfMachine(info.Machine) {
		name = info.Machine
	}
	flags, list, chosen := w.chosen(name)
	if !chosen {
		flags = w.given()
	}
	words := []string{"exec-server attach" + flagWords(flags)}
	for _, arg := range args {
		words = append(words, cli.QuoteShell(cli.Printable(arg))) // a server may have named the session
	}
	attach := strings.Join(words, " ")
	if !chosen || name != unnamed {
		return how + ": " + attach
	}
	// It is one release older, and does not say its name.
	return how + " (NAME is the machine that the gateway has chosen): " + attach +
		"\nfind it with: exec-fleet ls" + flagWords(list) + ", and exec-server ps" + flagWords(flags)
}

// flagWords returns flags with their values as a shell reads them, behind a space.
func flagWords(flags [][2]string) string {
	var text strings.Builder
	for _, flag := range flags {
		text.WriteString(" " + flag[0] + " " + cli.QuoteShell(flag[1]))
	}
	return text.String()
}

// atChosen adds to the error of somebody who looks for a session which machine that was.
func (w *where) atChosen(err error) error {
	attach, _, chosen := w.chosen(unnamed)
	if !chosen || !errors.Is(err, errNoTarget) {
		return err
	}
	return fmt.Errorf("%w; this was the machine that the gateway has chosen now, so name the right one with%s", err, flagWords(attach[:1]))
}

// chosen reports whether a gateway chooses the machine, which may be another one each time.
// attach are the flags that lead to the machine of this name there, and list those for exec-fleet ls.
func (w *where) chosen(machine string) (attach, list [][2]string, ok bool) {
	address, name, tokenFile := w.url, "", w.tokenFile
	byVariable := false
	switch {
	case w.on == onThisMachine:
		return nil, nil, false
	case w.url == "":
		found, err := environments.Find(w.on)
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
	if w.tokenFile != "" {
		attach = append(attach, [2]string{"--token-file", w.tokenFile})
	}
	return attach, list, true
}
