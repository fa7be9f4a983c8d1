package serve

import (
	"context"
	"log/slog"
	"os"
	"time"

	"execserver/server"
)

// reloadInterval is the interval at which the server checks the files that decide who may
// connect. It accepts a change after two checks, because a half-written file may allow too much.
// SIGHUP makes it accept a change at once.
const reloadInterval = time.Second

// Refresher is a value that was loaded from files.
type Refresher interface {
	Refresh() (changed bool, err error) // at once
	Poll() (changed bool, err error)    // accepts what it finds for the second time
}

// OpenAudit opens the audit log, if configured.
func (o *Flags) OpenAudit(log *slog.Logger) (*server.AuditLog, error) {
	if o.AuditLog == "" {
		return nil, nil
	}
	return server.OpenAuditLog(o.AuditLog, o.AuditRequired, log)
}

// Reload refreshes values when their files change, until ctx ends. An error leaves a value
// unchanged.
func Reload(ctx context.Context, log *slog.Logger, srv *server.Server, audited *server.AuditLog, hangups <-chan os.Signal, manager serviceManager, of map[string]Refresher) {
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
			manager.reloading()
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
			manager.Say("READY=1")
		}
		ticker.Reset(reloadInterval) // keep two checks apart
	}
}
