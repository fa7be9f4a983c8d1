// Package files implements the commands that work on the files of a machine: cp, cat, ls and watch.
package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/client/environments"
	"execserver/internal/cli"
)

// copyOptions are the flags of cp.
type copyOptions struct {
	machine            cli.Machine
	modes, quiet, json bool
}

// CpCommand returns the command cp.
func CpCommand() *cobra.Command {
	var o copyOptions
	command := &cobra.Command{
		Use:        "cp [flags] SOURCE... TARGET",
		Short:      "Copy files and directories to a machine or from it",
		GroupID:    cli.GroupWork,
		SuggestFor: []string{"copy", "scp", "rsync"},
		Long: "NAME:PATH is a path on the machine of the environment NAME. :PATH is a path on the machine of --on\n" +
			"or --url. A relative PATH starts in the directory of the server. A local path with a colon needs a\n" +
			"slash, as in ./a:b. A single - is standard output as TARGET, and standard input as SOURCE.\n\n" +
			"If TARGET is a directory, the copies go into it. Permissions, times and links are copied; owners are\n" +
			"not. cp skips a file that exists with the same size and time. It overwrites other existing files in\n" +
			"place, so they keep their owner and hard links and, without -a or -p, their permissions. On Linux,\n" +
			"cp replaces the file of a running program. A new file gets its name when it is complete. After an\n" +
			"interruption, repeat the command.\n\n" +
			"FIFOs, sockets and devices are left out. The exit code is 1 if something else was not copied.",
		Example: "  exec-server cp src box:project/\n" +
			"  exec-server cp --url ws://localhost:8765 :/var/log/app.log .",
		ValidArgsFunction: o.completeArg,
		Args: func(command *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
				return cli.NewUsageError(errors.New("name the source and the target of the copy"), command)
			case 1:
				return cli.NewUsageError(fmt.Errorf("name the target of the copy of %q", args[0]), command)
			}
			return cli.NeedPaths(command, args)
		},
		RunE: func(command *cobra.Command, args []string) error {
			if err := o.machine.Check(command); err != nil {
				return err
			}
			task, err := o.task(args)
			if err != nil {
				return cli.NewUsageError(err, command)
			}
			if task.stream && o.json {
				return cli.NewUsageError(errors.New("--json cannot be combined with -, which is not a file"), command)
			}
			return task.machine.Do("cp", func(ctx context.Context, env *client.Environment) error {
				switch {
				case task.stream && task.in:
					return copyStream(ctx, env, command.InOrStdin(), task.target)
				case task.stream:
					return printFile(ctx, env, command.OutOrStdout(), task.sources[0])
				}
				return o.run(ctx, env, task)
			})
		},
	}
	f := command.Flags()
	f.BoolP("recursive", "r", false, "accepted for compatibility; directories are always copied recursively")
	f.BoolVarP(&o.modes, "preserve", "p", false, "also give existing files and directories the permissions of their source")
	f.BoolVarP(&o.modes, "archive", "a", false, "the same as -r -p")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print only errors, even on a terminal")
	f.BoolVar(&o.json, "json", false, "print a JSON object that summarizes the copy")
	o.machine.AddFlags(f)
	return command
}

// completeArg completes an argument of cp: a local path, the name of a machine, or a path of
// a machine.
func (o *copyOptions) completeArg(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if p := parseCopyArg(typed); p.remote {
		m := o.machine
		if p.name != "" {
			m = cli.Machine{On: p.name}
		}
		paths, directive := m.CompletePaths(nil, nil, p.path)
		for i, path := range paths {
			paths[i] = p.name + ":" + path
		}
		return paths, directive
	}
	args := cli.LocalPaths(typed)
	names, _, _ := environments.Names()
	for _, name := range names {
		if strings.HasPrefix(name, typed) && environments.IsName(name) { // local: is not a machine for cp
			args = append(args, name+":")
		}
	}
	return args, cli.PathDirective(args)
}

// copyTask is a parsed command line of cp.
type copyTask struct {
	machine cli.Machine
	in      bool // to the machine
	stream  bool // the local side is -, standard input or output
	sources []string
	target  string
}

// copyArg is an argument of cp.
type copyArg struct {
	remote bool
	name   string // of the machine, if it has one
	path   string
}

// parseCopyArg parses an argument. A colon after a slash belongs to a path, and on Windows a
// colon after a single letter belongs to a drive.
func parseCopyArg(arg string) copyArg {
	name, path, ok := strings.Cut(arg, ":")
	switch {
	case !ok, strings.ContainsAny(name, `/\`), name != "" && !environments.IsName(name),
		runtime.GOOS == "windows" && len(name) == 1:
		return copyArg{path: arg}
	}
	return copyArg{remote: true, name: name, path: path}
}

// task parses the arguments.
func (o *copyOptions) task(args []string) (*copyTask, error) {
	last := parseCopyArg(args[len(args)-1])
	t := &copyTask{machine: o.machine, in: last.remote, target: last.path}
	names := map[string]bool{}
	if last.remote {
		names[last.name] = true
	}
	for _, arg := range args[:len(args)-1] {
		source := parseCopyArg(arg)
		switch {
		case source.remote && last.remote:
			return nil, fmt.Errorf("%q and %q are both on another machine; copy from one of them to this machine first", arg, args[len(args)-1])
		case !source.remote && !last.remote:
			return nil, bothLocal(arg, args[len(args)-1])
		case source.remote:
			names[source.name] = true
		}
		t.sources = append(t.sources, source.path)
	}
	if t.stream = t.target == "-" && !t.in || slices.Contains(t.sources, "-") && t.in; t.stream && len(t.sources) > 1 {
		return nil, errors.New("- takes one file")
	}
	if len(names) > 1 {
		return nil, errors.New("the sources are on several machines; copy from one after the other")
	}
	for name := range names {
		switch {
		case name == "":
		case o.machine.On != "" || o.machine.URL != "":
			return nil, fmt.Errorf("%s: names a machine, and so does --on or --url; leave one of them out", name)
		default:
			t.machine.On = name
		}
	}
	return t, nil
}

// copyStream copies standard input to a file of the machine.
func copyStream(ctx context.Context, env *client.Environment, from io.Reader, target string) error {
	file, err := env.FS(target).WithContext(ctx).Create(".")
	if err != nil {
		return pathError("copy to", target, err)
	}
	_, err = io.Copy(file, from)
	if err = errors.Join(err, file.Close()); err != nil {
		return pathError("copy to", target, withAdvice(err))
	}
	return nil
}

// bothLocal returns the error for a source and a target that are both local. One of them may name
// a machine of a gateway: GATEWAY/MACHINE:PATH looks like a local path.
func bothLocal(source, target string) error {
	for _, arg := range []string{source, target} {
		machine, path, ok := strings.Cut(arg, ":")
		gateway, name, _ := strings.Cut(machine, "/")
		if ok && environments.IsName(gateway) && environments.IsName(name) {
			return fmt.Errorf("%q and %q are both on this machine; for a file of the machine %s, use --on %[3]s and :%s", source, target, machine, path)
		}
	}
	return fmt.Errorf("%q and %q are both on this machine; begin one of them with NAME: or a colon", source, target)
}

// run copies.
func (o *copyOptions) run(ctx context.Context, env *client.Environment, t *copyTask) error {
	r := &copyRun{env: env, files: env.FS(t.target).WithContext(ctx), task: t, modes: o.modes, report: copyReport{Problems: []copyProblem{}}, began: time.Now()}
	if !o.quiet && !o.json {
		r.meter = newMeter(os.Stderr)
	}
	into, err := r.intoDirectory(ctx)
	if err != nil {
		return err
	}
	err = cli.Each(ctx, env, t.sources, func(source string) error {
		err := r.copy(ctx, source, into)
		r.add()
		switch {
		case errors.As(err, new(*client.CopyError)):
			r.failed = true
			return nil // already reported
		case err != nil:
			r.report.Failed++
			r.note(source, err)
		}
		return withAdvice(err)
	})
	r.meter.finish(&r.report, time.Since(r.began))
	if r.unfinished(ctx) {
		fmt.Fprintln(os.Stderr, "the copy is not complete; repeat the command to finish it")
	}
	r.report.Seconds = time.Since(r.began).Seconds()
	if o.json {
		err = errors.Join(err, cli.JSON(os.Stdout, &r.report))
	}
	if err == nil && r.failed {
		err = cli.ExitCode(1)
	}
	return err
}

// copyReport is the output of --json.
type copyReport struct {
	Files     int64         `json:"files"`
	Bytes     int64         `json:"bytes"`
	Unchanged int64         `json:"unchanged"`
	LeftOut   int64         `json:"leftOut"`
	Failed    int64         `json:"failed"`
	Replaced  int64         `json:"replaced"` // files of running programs
	Seconds   float64       `json:"seconds"`
	Problems  []copyProblem `json:"problems"` // the first of them
}

type copyProblem struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

const maxCopyProblems = 1000

// copyRun is a cp in progress.
type copyRun struct {
	env    *client.Environment
	files  *client.FS // at the target, if the target is remote
	task   *copyTask
	modes  bool
	began  time.Time
	meter  *meter
	report copyReport
	now    client.CopyProgress // of the current source
	failed bool
}

// intoDirectory reports whether the target is an existing directory, which receives the copies.
func (r *copyRun) intoDirectory(ctx context.Context) (bool, error) {
	t := r.task
	var info fs.FileInfo
	var err error
	if t.in {
		info, err = r.files.Stat(".")
	} else {
		info, err = os.Stat(t.target)
	}
	switch {
	case err == nil && info.IsDir():
		return true, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, pathError("copy to", t.target, err)
	case len(t.sources) > 1, err == nil && endsInSeparator(t.target):
		return false, fmt.Errorf("cannot copy to %s: it is not a directory", cli.Printable(t.target))
	case err != nil:
		return false, r.needParent(ctx)
	}
	return false, nil
}

// needParent returns an error if the parent directory of the target does not exist. The error of
// the copy itself would seem to be about the source.
func (r *copyRun) needParent(ctx context.Context) error {
	target := strings.TrimRightFunc(r.task.target, isSeparator)
	parent := target[:strings.LastIndexFunc(target, isSeparator)+1]
	if parent == "" {
		return nil
	}
	var err error
	if r.task.in {
		_, err = r.env.FS(parent).WithContext(ctx).Stat(".")
	} else {
		_, err = os.Stat(parent)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot copy to %s: there is no directory %s", cli.Printable(r.task.target), cli.Printable(parent))
	}
	return nil // the copy reports other errors
}

// needDirectory returns an error if the target has to be a directory, but the source is a file.
func (r *copyRun) needDirectory(ctx context.Context, source string) error {
	if !endsInSeparator(r.task.target) {
		return nil
	}
	var info fs.FileInfo
	var err error
	if r.task.in {
		info, err = os.Stat(source)
	} else {
		info, err = r.env.FS(source).WithContext(ctx).Stat(".")
	}
	if err == nil && !info.IsDir() {
		return fmt.Errorf("cannot copy %s to %s: there is no such directory", cli.Printable(source), cli.Printable(r.task.target))
	}
	return nil // the copy reports errors
}

// withAdvice adds advice to the error of a full disk.
func withAdvice(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w; make room there, and repeat the command", err)
	}
	return err
}

func endsInSeparator(path string) bool { return path != "" && os.IsPathSeparator(path[len(path)-1]) }

func isSeparator(c rune) bool { return c < utf8.RuneSelf && os.IsPathSeparator(byte(c)) }

// copy copies one source.
func (r *copyRun) copy(ctx context.Context, source string, into bool) error {
	opts := &client.CopyOptions{Modes: r.modes, Progress: r.progress}
	target := r.task.target
	if into {
		name := filepath.Base(source)
		if !r.task.in && r.env.Info().OS == "windows" {
			name = source[strings.LastIndexAny(source, `/\:`)+1:]
		}
		if name != "." && name != ".." && name != "" && !os.IsPathSeparator(name[0]) { // else its content
			target = inDirectory(target, name)
		}
	} else if err := r.needDirectory(ctx, source); err != nil {
		return err
	}
	if r.task.machine.On == cli.ThisMachine {
		if err := checkInside(source, target, r.env.Info().Dir, r.task.in); err != nil {
			return err
		}
	}
	opts.Problem = func(p *fs.PathError) {
		err := pathError("copy", p.Path, p)
		if p.Path == source {
			err = copyError(source, target, p)
		}
		r.problem(p, err)
	}
	var err error
	if r.task.in {
		err = r.env.FS(target).WithContext(ctx).CopyIn(source, ".", opts)
	} else {
		err = r.env.FS(source).WithContext(ctx).CopyOut(".", target, opts)
	}
	if err == nil || errors.As(err, new(*client.CopyError)) {
		return err
	}
	return copyError(source, target, err)
}

// copyError adds the source and the target to an error, because either side may have caused it.
func copyError(source, target string, err error) error {
	if errors.Is(err, fs.ErrNotExist) { // the source, because needParent has checked the target
		return pathError("copy", source, err)
	}
	return pathError("copy "+cli.Printable(source)+" to", target, err)
}

// inDirectory joins a directory, which may be empty on the machine, and a name.
func inDirectory(dir, name string) string {
	if dir == "" || strings.HasSuffix(dir, "/") {
		return dir + name
	}
	return dir + "/" + name
}

// checkInside refuses to copy a local directory into itself, which would never end.
func checkInside(source, target, dir string, in bool) error {
	absolute := func(path string, remote bool) string {
		if remote && !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		path, _ = filepath.Abs(path) // fails only without a working directory
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return real
		}
		if real, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
			return filepath.Join(real, filepath.Base(path))
		}
		return path
	}
	if rest, err := filepath.Rel(absolute(source, !in), absolute(target, in)); err == nil && filepath.IsLocal(rest) {
		return fmt.Errorf("cannot copy %s into itself, to %s", cli.Printable(source), cli.Printable(target))
	}
	return nil
}

// unfinished reports whether the copy was interrupted.
func (r *copyRun) unfinished(ctx context.Context) bool { return ctx.Err() != nil || r.env.Err() != nil }

func (r *copyRun) progress(p client.CopyProgress) {
	r.now = p
	r.meter.show(&r.report, p)
}

// problem reports a problem to the user as err.
func (r *copyRun) problem(p *fs.PathError, err error) {
	r.meter.clear()
	if errors.Is(p, client.ErrSpecialFile) {
		fmt.Fprintf(os.Stderr, "left out %s: %s\n", cli.Printable(p.Path), cli.Printable(p.Err.Error()))
	} else {
		fmt.Fprintf(os.Stderr, "Error: %s\n", cli.ErrorLine(withAdvice(err)))
	}
	r.note(p.Path, p.Err)
}

// note adds a problem to the report.
func (r *copyRun) note(path string, err error) {
	if len(r.report.Problems) < maxCopyProblems {
		r.report.Problems = append(r.report.Problems, copyProblem{path, err.Error()})
	}
}

// add adds the counts of the current source to the report.
func (r *copyRun) add() {
	r.report.Files += r.now.Files
	r.report.Bytes += r.now.Bytes
	r.report.Unchanged += r.now.Unchanged
	r.report.LeftOut += r.now.LeftOut
	r.report.Failed += r.now.Failed
	r.report.Replaced += r.now.Replaced
	r.now = client.CopyProgress{}
}
