package serve

import (
	"context"
	"log/slog"
	"os"
	"time"

	"execserver/server"
)

// reloadInterval is how often the server checks the files that decide who may connect. It
// accepts a change that two checks in a row find, because a file that is being written
// may allow more than it will in the end. SIGHUP makes it accept a change at once.
const reloadInterval = time.Second

// Refresher is a value that was loaded from files.
type Refresher interface {
	Refresh() (changed bool, err error) // at once
	Poll() (changed bool, err error)    // accepts what it finds for the second time
}

// OpenAudit opens the audit log, if there is one.
func (o *Flags) OpenAudit(log *slog.Logger) (*server.AuditLog, error) {
	if o.AuditLog == "" {
		return nil, nil
	}
	return server.OpenAuditLog(o.AuditLog, o.AuditRequired, log)
}

// Reload refreshes the values made from files when the files change, until ctx ends.
// After an error a value stays as it was.
func Reload(ctx context.Context, log *slog.Logger, srv *server.Server, audited *server.AuditLog, hangups <-chan os.Signal, supervisor supervisor, of map[string]Refresher) {
	ticker := time.NewTicker(reloadInterval)
	defer ticker.Stop()
	for {
		atOnce := false
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-hangups:
			atOnce = true
			supervisor.reloading()
			log.Info("checking for changed files", "signal", "hangup")
			if err := audited.Reopen(); err != nil {
				log.Error("cannot start a new audit log; the old file is still used", "error", err)
			}
		}
		for what, files := range of {
			refresh := files.Poll
			if atOnce {
				refresh = files.Refresh
			}
			switch changed, err := refresh(); {
			case err != nil:
				log.Error("cannot use a changed file; the previous "+what+" still apply", "error", err)
			case changed:
				log.Warn("read the " + what + " again")
				srv.Recheck()
			}
		}
		if atOnce {
			supervisor.Say("READY=1")
		}
		ticker.Reset(reloadInterval) // two checks never follow each other at once
	}
}
