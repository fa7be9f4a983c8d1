package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/spf13/pflag"

	"execserver/internal/cli/usage"
	"execserver/internal/recording"
	"execserver/server"
)

// recordFlags are the flags of the server about recordings.
type recordFlags struct {
	dir   string
	input bool
	total int64
}

func (r *recordFlags) define(f *pflag.FlagSet) {
	f.StringVar(&r.dir, "record", "", "record every process in a file in this `directory`, which asciinema plays")
	f.BoolVar(&r.input, "record-input", false, "record what is written to processes, too; that may be passwords")
	f.Int64Var(&r.total, "record-total", recording.DefaultTotalBytes, "remove the oldest recordings when all together have this many `bytes`")
}

// complete checks what the flag library cannot.
func (r *recordFlags) complete(f *pflag.FlagSet) error {
	if r.total <= 0 {
		return usage.InvalidValue("record-total", f.Lookup("record-total").Value.String(), "must be greater than zero")
	}
	if dir := f.Lookup("record"); dir.Changed && r.dir == "" {
		return errors.New("--record needs a value")
	}
	if r.dir == "" {
		for _, name := range []string{"record-input", "record-total"} {
			if f.Changed(name) {
				return fmt.Errorf("--%s needs --record", name)
			}
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
	recorder, err := recording.Open(r.dir, &recording.Options{Log: log, Input: r.input, TotalBytes: r.total})
	if err != nil {
		return nil, nil, err
	}
	return recorder, recorder.Close, nil
}
