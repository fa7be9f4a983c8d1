package serve

import (
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/spf13/pflag"

	"execserver/internal/recording"
	"execserver/server"
)

// recordFlags are the flags of the server about recordings.
type recordFlags struct {
	dir   string
	input bool
}

func (r *recordFlags) define(f *pflag.FlagSet) {
	f.StringVar(&r.dir, "record", "", "record every process in a file in this `directory`, which asciinema plays")
	f.BoolVar(&r.input, "record-input", false, "record what is written to processes, too; that may be passwords")
}

// complete checks what the flag library cannot.
func (r *recordFlags) complete(f *pflag.FlagSet) error {
	if dir := f.Lookup("record"); dir.Changed && r.dir == "" {
		return errors.New("--record needs a value")
	}
	if r.dir == "" {
		if r.input {
			return errors.New("--record-input needs --record")
		}
		return nil
	}
	dir, err := filepath.Abs(r.dir)
	r.dir = dir
	return err
}

// open returns what records, or nil, and what ends that.
func (r *recordFlags) open(log *slog.Logger) (_ server.Recorder, end func(), err error) {
	if r.dir == "" {
		return nil, func() {}, nil
	}
	recorder, err := recording.Open(r.dir, &recording.Options{Log: log, Input: r.input})
	if err != nil {
		return nil, nil, err
	}
	return recorder, recorder.Close, nil
}
