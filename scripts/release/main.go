// Command release builds what strangers install: for each platform a static binary, an
// archive with man pages and completions, and a list of what is in it; for Linux also
// packages. Two runs of the same commit with the same Go give the same bytes, wherever the
// tree is. "make release" runs it.
package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// program is the first of the programs, and the name of archives and packages, which have all of them.
const program = "exec-server"

// programs are what is released: each is a command of a module.
var programs = []struct{ name, module string }{{program, "."}, {"exec-fleet", "fleet"}}

// release is one run.
type release struct {
	goTool  string
	version string    // as "exec-server version" prints it
	time    time.Time // of the commit; every file that is made has it
	author  string    // of the commit; the maintainer of the packages
	out     string    // the directory for what people get
	lean    bool      // neither packages nor lists of what is in a program
	scratch string    // removed at the end
}

// platform is a system and an architecture, as Go names them.
type platform struct{ system, arch string }

func (p platform) String() string { return p.system + "-" + p.arch }

func main() {
	platforms := flag.String("platforms", "linux/amd64", "the platforms, as `SYSTEM/ARCHITECTURE...`")
	version := flag.String("version", "", "the `version` (default: that of scripts/version)")
	out := flag.String("out", "dist", "the `directory` for the files; what a release has left there is removed")
	lean := flag.Bool("archive-only", false, "make neither packages nor lists of modules, whose tools take long to build")
	flag.Parse()
	if err := run(strings.Fields(*platforms), &release{version: *version, out: *out, lean: *lean}); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(names []string, r *release) error {
	var platforms []platform
	for _, name := range names {
		system, arch, ok := strings.Cut(name, "/")
		if !ok {
			return fmt.Errorf("%q is no platform; expected one such as linux/amd64", name)
		}
		platforms = append(platforms, platform{system, arch})
	}
	var err error
	if r.scratch, err = os.MkdirTemp("", "exec-server-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.scratch)
	r.goTool = cmp.Or(os.Getenv("GO"), "go")
	if err := r.identify(); err != nil {
		return err
	}
	if err := r.empty(); err != nil {
		return err
	}
	docs, err := r.documents()
	if err != nil {
		return err
	}
	for _, p := range platforms {
		if err := r.build(p, docs); err != nil {
			return fmt.Errorf("for %s/%s: %w", p.system, p.arch, err)
		}
	}
	if err := copyFile(filepath.Join(r.out, "install.sh"), "scripts/install.sh", 0o755); err != nil {
		return err
	}
	return r.sum()
}

// identify determines which version is released. Outside a repository, the environment must
// specify it.
func (r *release) identify() (err error) {
	if r.version == "" {
		if r.version, err = output(exec.Command("scripts/version")); err != nil {
			return fmt.Errorf("find the version: %w; name it with -version", err)
		}
	}
	if strings.ContainsAny(r.version, "/ \t\n") || strings.HasPrefix(r.version, "-") {
		return fmt.Errorf("%q is no version: it becomes a part of file names", r.version)
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		if epoch, err = output(exec.Command("git", "log", "-1", "--format=%ct")); err != nil {
			return fmt.Errorf("find the time of the commit: %w; set SOURCE_DATE_EPOCH", err)
		}
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	r.time = time.Unix(seconds, 0).UTC()
	if r.author = os.Getenv("MAINTAINER"); r.author == "" {
		if r.author, err = output(exec.Command("git", "log", "-1", "--format=%an <%ae>")); err != nil {
			return fmt.Errorf("find the author of the commit: %w; set MAINTAINER to \"NAME <ADDRESS>\"", err)
		}
	}
	return nil
}

// empty makes the directory for the files. It removes an earlier release and nothing else.
func (r *release) empty() error {
	entries, err := os.ReadDir(r.out)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		ours := name == "install.sh" || name == sums
		for _, program := range programs {
			ours = ours || strings.HasPrefix(name, program.name)
		}
		if !ours {
			return fmt.Errorf("%s holds %s, which is of no release: remove it, or choose another directory with -out", r.out, name)
		}
		if err := os.Remove(filepath.Join(r.out, name)); err != nil {
			return err
		}
	}
	return os.MkdirAll(r.out, 0o755)
}

// build makes the files of one platform.
func (r *release) build(p platform, docs []file) error {
	var suffix string
	if p.system == "windows" {
		suffix = ".exe"
	}
	files := installed(docs)
	if p.system == "windows" {
		files = flat(docs)
	}
	for _, program := range programs {
		binary := filepath.Join(r.out, program.name+"-"+p.String()+suffix)
		if err := r.compile(binary, p, program.module, program.name); err != nil {
			return err
		}
		if !r.lean {
			if err := r.list(filepath.Join(r.out, program.name+"-"+r.version+"-"+p.String()+".cdx.json"), binary); err != nil {
				return err
			}
		}
		notices, err := r.notices(binary)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(binary)
		if err != nil {
			return err
		}
		text := file{"share/doc/exec-server/" + noticesOf(program.name), 0o644, notices}
		if p.system == "windows" {
			files = append(files, file{program.name + suffix, 0o755, content})
			files = append(files, flat([]file{text})...)
		} else {
			files = append(files, file{"bin/" + program.name, 0o755, content}, text)
		}
	}
	base := program + "-" + r.version + "-" + p.String()
	if p.system == "windows" {
		return writeZip(filepath.Join(r.out, base+".zip"), base, files, r.time)
	}
	err := writeTar(filepath.Join(r.out, base+".tar.gz"), base, files, r.time)
	if err == nil && p.system == "linux" && !r.lean {
		err = r.pack(p, files)
	}
	return err
}

// compile builds a command of a module. No byte of the program depends on the directory or on git.
func (r *release) compile(target string, p platform, module, name string, flags ...string) error {
	target, err := filepath.Abs(target)
	if err != nil {
		return err
	}
	args := append([]string{"build", "-C", module, "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version=" + r.version, "-o", target}, flags...)
	command := exec.Command(r.goTool, append(args, "./cmd/"+name)...)
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0",
		"GOOS="+p.system, "GOARCH="+p.arch)
	_, err = output(command)
	return err
}

const sums = "SHA256SUMS"

// sum writes the checksum of each file, as sha256sum -c reads it.
func (r *release) sum() error {
	entries, err := os.ReadDir(r.out) // in the order of the names
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(r.out, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(content), entry.Name())
		fmt.Printf("%8.1f MB  %s\n", float64(len(content))/1e6, filepath.Join(r.out, entry.Name()))
	}
	return os.WriteFile(filepath.Join(r.out, sums), []byte(lines.String()), 0o644)
}

// output runs a command and returns its output without the last newline. What it says on
// standard error is in the error.
func output(command *exec.Cmd) (string, error) {
	var errors strings.Builder
	command.Stderr = &errors
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(command.Args[:min(3, len(command.Args))], " "), err, errors.String())
	}
	return strings.TrimRight(string(out), "\n"), nil
}

func copyFile(target, source string, mode os.FileMode) error {
	content, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	return writeFile(target, content, mode)
}

// writeFile writes a file with exactly this mode, whatever the umask.
func writeFile(path string, content []byte, mode os.FileMode) error {
	return errors.Join(os.WriteFile(path, content, mode), os.Chmod(path, mode))
}

// sorted returns files in the order of their names.
func sorted(files []file) []file {
	return slices.SortedFunc(slices.Values(files), func(a, b file) int { return strings.Compare(a.name, b.name) })
}
