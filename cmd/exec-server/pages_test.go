package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

// blocks returns the content of the blocks of a kind, such as "sh".
func blocks(text, kind string) (found []string) {
	for _, match := range regexp.MustCompile("(?ms)^```"+kind+"\n(.*?)^```").FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	return found
}

// programLine matches a call of this program, with its arguments, at the beginning of a line.
var programLine = regexp.MustCompile(`(?m)^(?:\$ )?exec-server (.*)$`)

// TestPages checks that the commands and flags on the pages exist, and that no entry for
// Codex leaves out the line without which it would run commands on the local machine.
func TestPages(t *testing.T) {
	for _, page := range documents(t) {
		text := strings.ReplaceAll(readText(t, page), "\\\n", " ") // continued lines
		for _, block := range append(blocks(text, "sh"), blocks(text, "console")...) {
			for _, match := range programLine.FindAllStringSubmatch(block, -1) {
				if err := understood(match[1]); err != nil {
					t.Errorf("%s: exec-server %s: %v", page, match[1], err)
				}
			}
		}
		for _, block := range blocks(text, "toml") {
			var config struct {
				IncludeLocal *bool `toml:"include_local"`
				Environments []any `toml:"environments"`
			}
			if _, err := toml.Decode(block, &config); err != nil {
				t.Errorf("%s: %v\n%s", page, err, block)
			}
			if len(config.Environments) > 0 && (config.IncludeLocal == nil || *config.IncludeLocal) {
				t.Errorf("%s has an entry without include_local = false:\n%s", page, block)
			}
		}
	}
}

// understood parses a command line of this program up to what the shell or another program
// gets, and runs nothing.
func understood(line string) error {
	line, _, _ = strings.Cut(line, " #")
	line = regexp.MustCompile(`"\$\([^)]*\)"|\$\$`).ReplaceAllString(line, "1") // what the shell puts in
	line, _, _ = strings.Cut(line, " -- ")
	line = regexp.MustCompile(` ?[<>|;&].*`).ReplaceAllString(line, "")
	command, args, err := newCommand().Find(strings.Fields(line))
	if err != nil {
		return err
	}
	return command.ParseFlags(args)
}
