package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"time"
)

// file is a file of an archive.
type file struct {
	name    string // with slashes, below the directory of the archive
	mode    os.FileMode
	content []byte
}

// writeTar writes files below the directory base into a tar.gz archive. They belong to root.
func writeTar(target, base string, files []file, modified time.Time) error {
	return create(target, func(out io.Writer) error {
		compress, err := gzip.NewWriterLevel(out, gzip.BestCompression)
		if err != nil {
			return err
		}
		archive := tar.NewWriter(compress)
		for _, f := range sorted(files) {
			header := &tar.Header{
				Typeflag: tar.TypeReg, Name: path.Join(base, f.name), Size: int64(len(f.content)), Mode: int64(f.mode),
				ModTime: modified, Uname: "root", Gname: "root", Format: tar.FormatUSTAR,
			}
			if err := archive.WriteHeader(header); err != nil {
				return err
			}
			if _, err := archive.Write(f.content); err != nil {
				return err
			}
		}
		return errors.Join(archive.Close(), compress.Close())
	})
}

// writeZip does the same as writeTar, with a zip archive.
func writeZip(target, base string, files []file, modified time.Time) error {
	return create(target, func(out io.Writer) error {
		archive := zip.NewWriter(out)
		for _, f := range sorted(files) {
			header := &zip.FileHeader{Name: path.Join(base, f.name), Method: zip.Deflate, Modified: modified}
			header.SetMode(f.mode)
			w, err := archive.CreateHeader(header)
			if err != nil {
				return err
			}
			if _, err := w.Write(f.content); err != nil {
				return err
			}
		}
		return archive.Close()
	})
}

// create makes a file with what write writes.
func create(target string, write func(io.Writer) error) error {
	f, err := os.Create(target)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
