package files

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
	"execserver/protocol"
)

// listOptions are the flags of ls.
type listOptions struct {
	machine                   cli.Machine
	long, human, all, json    bool
	byTime, bySize, backwards bool
	recursive, itself, lines  bool
}

// LsCommand returns the command ls.
func LsCommand() *cobra.Command {
	var o listOptions
	command := &cobra.Command{
		Use:        "ls [flags] [PATH...]",
		Short:      "List files and directories",
		GroupID:    cli.GroupWork,
		SuggestFor: []string{"list", "dir"},
		Long: "ls lists directories, or the files that you name. Without a PATH it lists the directory of the\n" +
			"server, where relative paths start. On a terminal it prints columns, otherwise one name per line.\n" +
			"Without -t and -S it sorts by name. With -R it does not follow links to directories.\n" +
			"The exit code is 1 if something could not be listed.",
		Example: "  exec-server ls --on box -lt /var/log\n" +
			"  exec-server ls --on box --json src",
		ValidArgsFunction: o.machine.CompletePaths,
		Args:              cli.NeedPaths,
		RunE: func(command *cobra.Command, args []string) error {
			if err := o.machine.Check(command); err != nil {
				return err
			}
			if len(args) == 0 {
				args = []string{"."}
			}
			return o.machine.Do("ls", func(ctx context.Context, env *client.Environment) error {
				return o.run(ctx, env, command.OutOrStdout(), args)
			})
		},
	}
	f := command.Flags()
	f.BoolVarP(&o.long, "long", "l", false, "also print the mode, the size and the time of the last change")
	f.BoolVarP(&o.human, "human-readable", "h", false, "with -l: print sizes as 1.5 kB or 20 MB")
	f.BoolVarP(&o.all, "all", "a", false, "also list names that begin with a dot")
	f.BoolVarP(&o.all, "almost-all", "A", false, "the same as -a, because ls never lists . and ..")
	f.BoolVarP(&o.byTime, "time", "t", false, "sort by the time of the last change, newest first")
	f.BoolVarP(&o.bySize, "size", "S", false, "sort by size, largest first")
	f.BoolVarP(&o.backwards, "reverse", "r", false, "reverse the order")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "also list the directories below")
	f.BoolVarP(&o.itself, "directory", "d", false, "list a directory itself, not what is in it")
	f.BoolVarP(&o.lines, "one", "1", false, "print one name per line on a terminal, too")
	f.BoolVar(&o.json, "json", false, "print a JSON array with one detailed object for each file")
	o.machine.AddFlags(f)
	f.Bool("help", false, "print this text") // -h is that of ls
	return command
}

// listing is the result for one PATH: the entries of a directory, or one file.
type listing struct {
	path  string // as the user gave it
	isDir bool
	files []listedFile
}

// listedFile is one file of a listing.
type listedFile struct {
	name, path string
	isDir      bool
	info       fs.FileInfo // nil if only the name is needed
}

// run lists paths.
func (o *listOptions) run(ctx context.Context, env *client.Environment, out io.Writer, paths []string) error {
	documents := []listedJSON{}
	var before *listing // the previous listing
	var list func(path string) error
	list = func(path string) error {
		l, listError := o.look(ctx, env, path)
		var err error
		switch {
		case l == nil:
		case o.json:
			for _, file := range l.files {
				documents = append(documents, jsonOf(file))
			}
		default:
			if before != nil && (before.isDir || l.isDir) {
				_, err = fmt.Fprintln(out)
			}
			if l.isDir && (len(paths) > 1 || o.recursive) {
				_, err = fmt.Fprintf(out, "%s:\n", cli.Printable(path))
			}
			before = l
			err = errors.Join(err, o.print(out, l))
		}
		if err = errors.Join(err, listError); err != nil || !o.recursive || !l.isDir {
			return err
		}
		var below []string
		for _, file := range l.files {
			if file.isDir {
				below = append(below, file.path)
			}
		}
		return cli.Each(ctx, env, below, list)
	}
	err := cli.Each(ctx, env, paths, list)
	if o.json && ctx.Err() == nil && env.Err() == nil {
		err = errors.Join(cli.JSON(out, documents), err)
	}
	return err
}

// look lists a path. It may return a part of a directory with an error.
func (o *listOptions) look(ctx context.Context, env *client.Environment, name string) (*listing, error) {
	files := env.FS(name).WithContext(ctx)
	info, err := files.Stat(".")
	if errors.Is(err, fs.ErrNotExist) {
		if link, linkError := files.Lstat("."); linkError == nil {
			info, err = link, nil // a dangling link
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cli.SuggestMachine(name, pathError("list", name, err))
	}
	if err != nil {
		return nil, pathError("list", name, err)
	}
	l := &listing{path: name, isDir: info.IsDir() && !o.itself}
	if !l.isDir {
		l.files = []listedFile{{name: name, path: name, info: info}}
		return l, nil
	}
	entries, err := files.ReadDir(".")
	for _, entry := range entries {
		if !o.all && strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		file := listedFile{name: entry.Name(), path: path.Join(name, entry.Name()), isDir: entry.IsDir()}
		if o.long || o.json || o.byTime || o.bySize {
			info, infoError := entry.Info()
			if errors.Is(infoError, fs.ErrNotExist) {
				continue // just removed
			}
			if infoError != nil {
				return l, pathError("look at", file.path, infoError)
			}
			file.info = info
		}
		l.files = append(l.files, file)
	}
	if err != nil {
		err = pathError("list", name, err)
	}
	o.sort(l.files)
	return l, err
}

// sort sorts files that are in the order of their names.
func (o *listOptions) sort(files []listedFile) {
	switch {
	case o.byTime:
		slices.SortStableFunc(files, func(a, b listedFile) int { return b.info.ModTime().Compare(a.info.ModTime()) })
	case o.bySize:
		slices.SortStableFunc(files, func(a, b listedFile) int { return cmp.Compare(b.info.Size(), a.info.Size()) })
	}
	if o.backwards {
		slices.Reverse(files)
	}
}

func (o *listOptions) print(out io.Writer, l *listing) error {
	if o.long {
		var rows [][]string
		for _, file := range l.files {
			name := cli.Printable(file.name)
			if target := targetOf(file.info); target != "" {
				name += " -> " + cli.Printable(target)
			}
			bytes := strconv.FormatInt(file.info.Size(), 10)
			if o.human {
				bytes = cli.FormatSize(file.info.Size())
			}
			rows = append(rows, []string{
				modeOf(file.info), bytes, file.info.ModTime().Format(time.DateTime), name,
			})
		}
		return cli.Table(out, rows, 1)
	}
	width, terminal := cli.OnTerminal(out)
	var names []string
	for _, file := range l.files {
		if terminal {
			names = append(names, cli.Printable(file.name))
		} else {
			names = append(names, file.name) // for a program
		}
	}
	if terminal && !o.lines {
		return cli.Columns(out, names, width)
	}
	if len(names) == 0 {
		return nil
	}
	_, err := fmt.Fprintln(out, strings.Join(names, "\n"))
	return err
}

// pathError replaces the path in an error of package fs with the path that the user gave. what is
// the operation.
func pathError(what, name string, err error) error {
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		err = failed.Err
	}
	return fmt.Errorf("cannot %s %s: %w", what, cli.Printable(name), err)
}

// kindOf returns the kind of a file as named in the protocol.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		return "file"
	case mode.IsDir():
		return "directory"
	case mode&fs.ModeSymlink != 0:
		return "symlink"
	case mode&fs.ModeNamedPipe != 0:
		return "fifo"
	case mode&fs.ModeSocket != 0:
		return "socket"
	case mode&fs.ModeCharDevice != 0:
		return "charDevice"
	case mode&fs.ModeDevice != 0:
		return "blockDevice"
	}
	return "other"
}

// detailsOf returns the details that released servers do not send, or nil. Without them, the mode
// of the file is unknown.
func detailsOf(info fs.FileInfo) *protocol.FileDetails {
	meta, _ := info.Sys().(protocol.FileMetadata)
	return meta.FileDetails
}

// modeOf formats the mode of a file like ls: -rwxr-xr-x.
func modeOf(info fs.FileInfo) string {
	kind := map[string]string{
		"file": "-", "directory": "d", "symlink": "l", "fifo": "p", "socket": "s", "charDevice": "c", "blockDevice": "b", "other": "?",
	}[kindOf(info.Mode())]
	if detailsOf(info) == nil {
		return kind + "?????????"
	}
	bits := []byte(info.Mode().Perm().String()[1:])
	for _, special := range []struct {
		mode       fs.FileMode
		at         int
		with, sole byte // with the permission to execute, and without it
	}{{fs.ModeSetuid, 2, 's', 'S'}, {fs.ModeSetgid, 5, 's', 'S'}, {fs.ModeSticky, 8, 't', 'T'}} {
		switch {
		case info.Mode()&special.mode == 0:
		case bits[special.at] == 'x':
			bits[special.at] = special.with
		default:
			bits[special.at] = special.sole
		}
	}
	return kind + string(bits)
}

// targetOf returns the target of a link, or "".
func targetOf(info fs.FileInfo) string {
	if d := detailsOf(info); d != nil && d.Kind == protocol.KindSymlink {
		return d.Text()
	}
	return ""
}

// listedJSON is a file in the output of ls --json. The names are those of the protocol.
type listedJSON struct {
	Path         string             `json:"path"`
	FileName     string             `json:"fileName"`
	Kind         string             `json:"kind"`
	Mode         *protocol.FileMode `json:"mode,omitempty"` // absent if unknown, like UID and GID
	UID          *uint32            `json:"uid,omitempty"`
	GID          *uint32            `json:"gid,omitempty"`
	Size         int64              `json:"size"`
	ModifiedAtMs int64              `json:"modifiedAtMs"`
	ModifiedNs   uint32             `json:"modifiedNs,omitempty"`
	Target       string             `json:"target,omitempty"`
}

func jsonOf(file listedFile) listedJSON {
	j := listedJSON{
		Path: file.path, FileName: path.Base(file.name), Kind: kindOf(file.info.Mode()),
		Size: file.info.Size(), ModifiedAtMs: file.info.ModTime().UnixMilli(), Target: targetOf(file.info),
	}
	if d := detailsOf(file.info); d != nil {
		j.Mode, j.UID, j.GID, j.ModifiedNs = &d.Mode, d.UID, d.GID, d.ModifiedNs
	}
	return j
}
