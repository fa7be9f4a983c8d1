package main

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

// refresher is a value that was loaded from files.
type refresher interface {
	Refresh() (changed bool, err error) // at once
	Poll() (changed bool, err error)    // accepts what it finds for the second time
}

// openAudit opens the audit log, if there is one.
func (o *options) openAudit(log *slog.Logger) (*server.AuditLog, error) {
	if o.auditLog == "" {
		return nil, nil
	}
	return server.OpenAuditLog(o.auditLog, o.auditRequired, log)
}

// reload refreshes the values made from files when the files change, until ctx ends.
// After an error a value stays as it was.
func reload(ctx context.Context, log *slog.Logger, srv *server.Server, audited *server.AuditLog, hangups <-chan os.Signal, supervisor supervisor, of map[string]refresher) {
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
			supervisor.say("READY=1")
		}
		ticker.Reset(reloadInterval) // two checks never follow each other at once
	}
}
