//go:build unix

package client_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"execserver/client"
)

// mirrorFiles are the rows of mirror about files.
var mirrorFiles = map[string]row{
	"FS.WithContext": {use: func(u *using) error {
		_, err := u.env.FS(u.dir).WithContext(u).Stat(".")
		return err
	}},
	"FS.Sub": {use: func(u *using) error {
		sub, err := u.fs().Sub("below")
		if err != nil {
			return err
		}
		_, err = fs.Stat(sub, ".")
		return check(errors.Is(err, fs.ErrNotExist), "%v", err)
	}},
	"fs.FS.Open": {use: openAndRead}, "FS.Open": {use: openAndRead},
	"fs.File.Read": {use: openAndRead}, "fs.File.Stat": {use: openAndRead}, "fs.File.Close": {use: openAndRead},
	"FS.Stat": {use: statFile}, "fs.FileInfo.Name": {use: statFile}, "fs.FileInfo.Size": {use: statFile},
	"fs.FileInfo.Mode": {use: statFile}, "fs.FileInfo.ModTime": {use: statFile},
	"fs.FileInfo.IsDir": {use: statFile}, "fs.FileInfo.Sys": {use: statFile},
	"FS.Lstat": {use: func(u *using) error {
		_, err := u.fs().Lstat(u.file("f", "hi"))
		return err
	}},
	"FS.ReadDir": {use: readDir}, "fs.DirEntry.Name": {use: readDir}, "fs.DirEntry.IsDir": {use: readDir},
	"fs.DirEntry.Type": {use: readDir}, "fs.DirEntry.Info": {use: readDir},
	"FS.ReadFile": {use: func(u *using) error {
		data, err := u.fs().ReadFile(u.file("f", "hi"))
		return errors.Join(err, check(string(data) == "hi", "%q", data))
	}},
	"FS.WriteFile": {use: func(u *using) error { return errors.Join(u.fs().WriteFile("f", []byte("hi")), u.has("f", "hi")) }},
	"FS.WriteFileMode": {needs: "fsWriteFileMode", use: func(u *using) error {
		return u.then(u.fs().WriteFileMode("f", []byte("hi"), 0o640), func() error { return u.mode("f", 0o640) })
	}},
	"FS.ReplaceFile": {needs: "fsWriteFileReplace", use: func(u *using) error {
		u.file("f", "old")
		if err := os.Link(u.path("f"), u.path("other")); err != nil {
			return err
		}
		return u.then(u.fs().ReplaceFile("f", []byte("new")), func() error { return errors.Join(u.has("f", "new"), u.has("other", "old")) })
	}},
	"FS.Create":            {use: create},
	"io.WriteCloser.Write": {use: create},
	"io.WriteCloser.Close": {use: create},
	"FS.CreateMode": {needs: "fsMetadata", use: func(u *using) error {
		file, err := u.fs().CreateMode("f", 0o640)
		if err != nil {
			return err
		}
		return errors.Join(file.Close(), u.mode("f", 0o640))
	}},
	"FS.Mkdir":    {use: func(u *using) error { return errors.Join(u.fs().Mkdir("d"), u.mode("d", fs.ModeDir|0o755)) }},
	"FS.MkdirAll": {use: func(u *using) error { return errors.Join(u.fs().MkdirAll("d/e"), u.mode("d/e", fs.ModeDir|0o755)) }},
	"FS.MkdirMode": {needs: "fsMetadata", use: func(u *using) error {
		return u.then(u.fs().MkdirMode("d", 0o750), func() error { return u.mode("d", fs.ModeDir|0o750) })
	}},
	"FS.Remove":    {use: func(u *using) error { return errors.Join(u.fs().Remove(u.file("f", "")), u.gone("f")) }},
	"FS.RemoveAll": {use: func(u *using) error { return errors.Join(u.fs().RemoveAll(u.file("f", "")), u.gone("f")) }},
	"FS.Copy":      {use: func(u *using) error { return errors.Join(u.fs().Copy(u.file("f", "hi"), "g"), u.has("g", "hi")) }},
	"FS.RealPath": {use: func(u *using) error {
		real, err := u.fs().RealPath(".")
		return errors.Join(err, check(strings.HasPrefix(real, "/"), "%q", real))
	}},
	"FS.Rename": {needs: "fsRename", use: func(u *using) error {
		return u.then(u.fs().Rename(u.file("f", "hi"), "g"), func() error { return u.has("g", "hi") })
	}},
	"FS.Chmod": {needs: "fsMetadata", use: func(u *using) error {
		return u.then(u.fs().Chmod(u.file("f", ""), 0o640), func() error { return u.mode("f", 0o640) })
	}},
	"FS.Chtimes": {needs: "fsMetadata", use: func(u *using) error {
		at := time.Unix(1e9, 123456789)
		return u.then(u.fs().Chtimes(u.file("f", ""), at), func() error {
			info, err := os.Stat(u.path("f"))
			return errors.Join(err, check(err != nil || info.ModTime().Equal(at), "%v", info))
		})
	}},
	"FS.Truncate": {needs: "fsMetadata", use: func(u *using) error {
		return u.then(u.fs().Truncate(u.file("f", "hi"), 1), func() error { return u.has("f", "h") })
	}},
	"FS.Symlink": {needs: "fsMetadata", use: func(u *using) error {
		return u.then(u.fs().Symlink("there", "l"), func() error {
			text, err := os.Readlink(u.path("l"))
			return errors.Join(err, check(text == "there", "%q", text))
		})
	}},
	"FS.ReadLink": {needs: "fsMetadata", use: func(u *using) error {
		if err := os.Symlink("there", u.path("l")); err != nil {
			return err
		}
		text, err := u.fs().ReadLink("l")
		return u.then(err, func() error { return check(text == "there", "%q", text) })
	}},
	"FS.Watch": {needs: "fsWatch", use: func(u *using) error {
		for e, err := range u.fs().Watch(".") {
			switch {
			case err != nil:
				return err
			case e.Kind == client.WatchBegan:
				u.file("f", "")
			case e.Name == "f":
				return nil
			}
		}
		return errors.New("the loop ended")
	}},
	"FS.CopyIn": {use: func(u *using) error {
		u.file("f", "hi")
		return errors.Join(u.fs().CopyIn(u.path("f"), "g", nil), u.has("g", "hi"))
	}},
	"FS.CopyOut": {use: func(u *using) error {
		return errors.Join(u.fs().CopyOut(u.file("f", "hi"), u.path("g"), nil), u.has("g", "hi"))
	}},
}

func openAndRead(u *using) error {
	below, err := u.env.FS("/").WithContext(u).Sub(strings.TrimPrefix(u.dir, "/"))
	if err != nil {
		return err
	}
	file, err := below.Open(u.file("f", "hi"))
	if err != nil {
		return err
	}
	info, statErr := file.Stat()
	data, err := io.ReadAll(file)
	return errors.Join(err, statErr, file.Close(), check(statErr != nil || info.Size() == 2, "%v", info), check(string(data) == "hi", "%q", data))
}

func statFile(u *using) error {
	info, err := u.fs().Stat(u.file("f", "hi"))
	if err != nil {
		return err
	}
	text := fmt.Sprint(info.Name(), info.Size(), info.Mode().IsRegular(), info.IsDir(), info.Sys() != nil)
	return check(text == "f2 true false true" && time.Since(info.ModTime()).Abs() < time.Hour, "%s, %s", text, info.ModTime())
}

func readDir(u *using) error {
	u.file("f", "hi")
	entries, err := u.fs().ReadDir(".")
	if err != nil || len(entries) != 1 {
		return fmt.Errorf("%v, %w", entries, err)
	}
	e := entries[0]
	info, err := e.Info()
	return errors.Join(err, check(e.Name() == "f" && !e.IsDir() && e.Type().IsRegular(), "%v", e), check(err != nil || info.Size() == 2, "%v", info))
}

func create(u *using) error {
	file, err := u.fs().Create("f")
	if err != nil {
		return err
	}
	_, err = io.WriteString(file, "hi")
	return errors.Join(err, file.Close(), u.has("f", "hi"))
}

// then checks what an operation did, if it succeeded.
func (u *using) then(err error, look func() error) error {
	if err != nil {
		return err
	}
	return look()
}

func (u *using) has(name, content string) error {
	data, err := os.ReadFile(u.path(name))
	return errors.Join(err, check(string(data) == content, "%s has %q", name, data))
}

func (u *using) mode(name string, want fs.FileMode) error {
	info, err := os.Lstat(u.path(name))
	return errors.Join(err, check(err != nil || info.Mode() == want, "%v", info))
}

func (u *using) gone(name string) error {
	_, err := os.Lstat(u.path(name))
	return check(errors.Is(err, fs.ErrNotExist), "%s: %v", name, err)
}
