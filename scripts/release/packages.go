package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

func (r *release) epoch() string { return strconv.FormatInt(r.time.Unix(), 10) }

// tool is a program that tools/go.mod pins.
func (r *release) tool(name string, args ...string) *exec.Cmd {
	return exec.Command(r.goTool, append([]string{"tool", "-modfile=tools/go.mod", name}, args...)...)
}

// pack makes the packages of deploy/nfpm.yaml from the files of an archive.
func (r *release) pack(p platform, files []file) error {
	root := filepath.Join(r.scratch, p.String())
	version := packageVersion(r.version, r.time)
	changelog := fmt.Sprintf("%s (%s) unstable; urgency=medium\n\n  * Version %s.\n\n -- %s  %s\n",
		program, version, r.version, r.author, r.time.Format(time.RFC1123Z))
	for _, f := range append(files, file{"changelog.gz", 0o644, compressed([]byte(changelog))}) {
		path := filepath.Join(root, filepath.FromSlash(f.name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := writeFile(path, f.content, f.mode); err != nil {
			return err
		}
	}
	for _, packager := range []string{"deb", "rpm"} {
		command := r.tool("nfpm", "package", "-f", "deploy/nfpm.yaml", "-p", packager, "-t", r.out)
		command.Env = append(os.Environ(), "ROOT="+root, "ARCH="+p.arch, "VERSION="+version, "MAINTAINER="+r.author,
			"SOURCE_DATE_EPOCH="+r.epoch())
		if _, err := output(command); err != nil {
			return err
		}
	}
	return nil
}

var numbered = regexp.MustCompile(`^v?(\d+(?:\.\d+)+)(?:-(.+))?$`)

// day begins a version without a number.
var day = regexp.MustCompile(`^\d{4}-\d\d-\d\d-`)

// packageVersion returns a version in the order of packages: v1.2.0-rc1 comes before v1.2.0,
// which comes before the commits after it (v1.2.0-3-g0123abc). A commit without a number
// comes before every number.
func packageVersion(version string, committed time.Time) string {
	dotted := func(s string) string { return strings.ReplaceAll(s, "-", ".") }
	match := numbered.FindStringSubmatch(version)
	switch {
	case match == nil:
		return "0~" + committed.Format("20060102.150405") + "." + dotted(day.ReplaceAllString(version, ""))
	case match[2] == "":
		return match[1]
	case match[2][0] >= '0' && match[2][0] <= '9' || match[2] == "dirty":
		return match[1] + "+" + dotted(match[2])
	}
	return match[1] + "~" + dotted(match[2])
}
