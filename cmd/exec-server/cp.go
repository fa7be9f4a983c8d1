package main

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
	where              where
	modes, quiet, json bool
}

func newCopyCommand() *cobra.Command {
	var o copyOptions
	command := &cobra.Command{
		Use:        "cp [flags] SOURCE... TARGET",
		Short:      "Copy files and directories to a machine or from it",
		GroupID:    cli.GroupWork,
		SuggestFor: []string{"copy", "scp", "rsync"},
		Long: "cp copies files, and directories with everything in them, to a machine or from it. NAME:PATH is a\n" +
			"path of the environment of this name, and :PATH a path of the machine of --on or --url; a relative\n" +
			"PATH begins in the directory in which the server was started. ./a:b is a file here. A single - is\n" +
			"standard output as TARGET, and standard input as SOURCE.\n\n" +
			"If TARGET is a directory, the copies go into it under their names. Permissions, times and links\n" +
			"are copied; owners are not. cp skips a file that exists with the same size and time, and writes any\n" +
			"other existing file in place: it keeps its permissions, without -a or -p, its owner and its links.\n" +
			"On Linux cp replaces the file of a running program, which cannot be written. A new file appears when\n" +
			"it is whole. After an interruption, repeat the command.\n\n" +
			"FIFOs, sockets and devices are left out. The exit code is 1 if something else was not copied.",
		Example: "  exec-server cp -r src box:project/\n" +
			"  exec-server cp --url ws://localhost:8765 :/var/log/app.log .",
		ValidArgsFunction: o.completePlaces,
		Args: func(command *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
				return cli.NewUsageError(errors.New("name what to copy, and where to"), command)
			case 1:
				return cli.NewUsageError(fmt.Errorf("name where to copy %q to", args[0]), command)
			}
			return cli.NeedPaths(command, args)
		},
		RunE: func(command *cobra.Command, args []string) error {
			if err := o.where.check(command); err != nil {
				return err
			}
			task, err := o.task(args)
			if err != nil {
				return cli.NewUsageError(err, command)
			}
			if task.stream && o.json {
				return cli.NewUsageError(errors.New("--json says what was copied to a file, and - is none"), command)
			}
			return task.where.do("cp", func(ctx context.Context, env *client.Environment) error {
				switch {
				case task.stream && task.in:
					return readInto(ctx, env, command.InOrStdin(), task.target)
				case task.stream:
					return printFile(ctx, env, command.OutOrStdout(), task.sources[0])
				}
				return o.run(ctx, env, task)
			})
		},
	}
	f := command.Flags()
	f.SortFlags = false
	f.BoolP("recursive", "r", false, "accepted, but directories are always copied with everything in them")
	f.BoolVarP(&o.modes, "preserve", "p", false, "also give existing files and directories the permissions of their source")
	f.BoolVarP(&o.modes, "archive", "a", false, "the same as -r -p")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print errors only, also on a terminal")
	f.BoolVar(&o.json, "json", false, "print a JSON object that says what was copied")
	o.where.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
	return command
}

// copyTask is what cp has to do.
type copyTask struct {
	where   where
	in      bool // to the machine
	stream  bool // the place here is - for standard input or output
	sources []string
	target  string
}

// place is an argument of cp.
type place struct {
	far  bool
	name string // of the machine, if it has one
	path string
}

// placeOf understands an argument. A colon after a slash belongs to a path, and one after
// a single letter on Windows to a drive.
func placeOf(arg string) place {
	name, path, ok := strings.Cut(arg, ":")
	switch {
	case !ok, strings.ContainsAny(name, `/\`), name != "" && !environments.IsName(name),
		runtime.GOOS == "windows" && len(name) == 1:
		return place{path: arg}
	}
	return place{far: true, name: name, path: path}
}

// task understands the arguments.
func (o *copyOptions) task(args []string) (*copyTask, error) {
	last := placeOf(args[len(args)-1])
	t := &copyTask{where: o.where, in: last.far, target: last.path}
	names := map[string]bool{}
	if last.far {
		names[last.name] = true
	}
	for _, arg := range args[:len(args)-1] {
		source := placeOf(arg)
		switch {
		case source.far && last.far:
			return nil, fmt.Errorf("%q and %q are both on another machine; copy from one of them to this machine first", arg, args[len(args)-1])
		case !source.far && !last.far:
			return nil, bothHere(arg, args[len(args)-1])
		case source.far:
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
		case o.where.on != "" || o.where.url != "":
			return nil, fmt.Errorf("%s: names a machine, and so does --on or --url; leave one of them out", name)
		default:
			t.where.on = name
		}
	}
	return t, nil
}

// readInto copies from to a file of the machine.
func readInto(ctx context.Context, env *client.Environment, from io.Reader, target string) error {
	file, err := env.FS(target).WithContext(ctx).Create(".")
	if err != nil {
		return pathError("copy to", target, err)
	}
	_, err = io.Copy(file, from)
	if err = errors.Join(err, file.Close()); err != nil {
		return pathError("copy to", target, withRoom(err))
	}
	return nil
}

// bothHere says that a source and the target are both on this machine. One may have been meant
// for the machine of a gateway, whose name is the beginning of a path here.
func bothHere(source, target string) error {
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
	err = each(ctx, env, t.sources, func(source string) error {
		err := r.copy(ctx, source, into)
		r.add()
		switch {
		case errors.As(err, new(*client.CopyError)):
			r.failed = true
			return nil // told already
		case err != nil:
			r.report.Failed++
			r.note(source, err)
		}
		return withRoom(err)
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

// copyReport is what --json prints.
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
	files  *client.FS // at the target, if that is on the machine
	task   *copyTask
	modes  bool
	began  time.Time
	meter  *meter
	report copyReport
	now    client.CopyProgress // of the source in work
	failed bool
}

// intoDirectory reports whether the target is a directory, into which the copies go.
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

// needParent returns an error if the directory does not exist in which the target is to be
// made. The error of the copy would seem to be about the source.
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
	return nil // the copy tells about anything else
}

// needDirectory returns an error if the target must become a directory, and the source is
// none.
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
	return nil // the copy tells about an error
}

// withRoom adds advice to the error of a full disk.
func withRoom(err error) error {
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
	if r.task.where.on == onThisMachine {
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

// copyError says what was to be copied, and where to: either end may be the one that is
// denied or full.
func copyError(source, target string, err error) error {
	if errors.Is(err, fs.ErrNotExist) { // the source: the directory of the target was looked for
		return pathError("copy", source, err)
	}
	return pathError("copy "+cli.Printable(source)+" to", target, err)
}

// inDirectory returns the path of a name in a directory, which may be "" on another machine.
func inDirectory(dir, name string) string {
	if dir == "" || strings.HasSuffix(dir, "/") {
		return dir + name
	}
	return dir + "/" + name
}

// checkInside refuses to copy a directory of this machine into itself, which has no end.
func checkInside(source, target, dir string, in bool) error {
	absolute := func(path string, far bool) string {
		if far && !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		path, _ = filepath.Abs(path) // fails without a working directory: then nothing is relative to it
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

// unfinished reports whether the copy stopped early.
func (r *copyRun) unfinished(ctx context.Context) bool { return ctx.Err() != nil || r.env.Err() != nil }

func (r *copyRun) progress(p client.CopyProgress) {
	r.now = p
	r.meter.show(&r.report, p)
}

// problem tells a person about a problem, as err does.
func (r *copyRun) problem(p *fs.PathError, err error) {
	r.meter.clear()
	if errors.Is(p, client.ErrSpecialFile) {
		fmt.Fprintf(os.Stderr, "left out %s: %s\n", cli.Printable(p.Path), cli.Printable(p.Err.Error()))
	} else {
		fmt.Fprintf(os.Stderr, "Error: %s\n", cli.ErrorLine(withRoom(err)))
	}
	r.note(p.Path, p.Err)
}

// note adds a problem to the report.
func (r *copyRun) note(path string, err error) {
	if len(r.report.Problems) < maxCopyProblems {
		r.report.Problems = append(r.report.Problems, copyProblem{path, err.Error()})
	}
}

// add counts the source that was in work.
func (r *copyRun) add() {
	r.report.Files += r.now.Files
	r.report.Bytes += r.now.Bytes
	r.report.Unchanged += r.now.Unchanged
	r.report.LeftOut += r.now.LeftOut
	r.report.Failed += r.now.Failed
	r.report.Replaced += r.now.Replaced
	r.now = client.CopyProgress{}
}
