package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"execserver/internal/audit"
	"execserver/server"
)

// reloadLook is how often the files that decide who may come in are looked at. What
// two looks in a row find is believed: a file that somebody is writing may allow more
// than it will in the end. Whoever is in a hurry sends SIGHUP.
const reloadLook = time.Second

// refresher is what is made of files.
type refresher interface {
	Refresh() (changed bool, err error) // at once
	Look() (changed bool, err error)    // believes what it finds for the second time
}

// openAudit opens the audit log, if there is one.
func (o *options) openAudit(log *slog.Logger) (*audit.Log, error) {
	if o.auditLog == "" {
		return nil, nil
	}
	return audit.Open(o.auditLog, o.auditRequired, log)
}

// reload refreshes what is made of files when they change, until ctx ends. What
// cannot be read stays as it was.
func reload(ctx context.Context, log *slog.Logger, srv *server.Server, audited *audit.Log, hangups <-chan os.Signal, of map[string]refresher) {
	look := time.NewTicker(reloadLook)
	defer look.Stop()
	for {
		atOnce := false
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-hangups:
			atOnce = true
			log.Info("looking for changed files", "signal", "hangup")
			if err := audited.Reopen(); err != nil {
				log.Error("the audit log goes on where it is", "error", err)
			}
		}
		for what, files := range of {
			refresh := files.Look
			if atOnce {
				refresh = files.Refresh
			}
			switch changed, err := refresh(); {
			case err != nil:
				log.Error("what has changed cannot be used; the "+what+" of before stays in force", "error", err)
			case changed:
				log.Warn("the " + what + " has been read again")
				srv.Recheck()
			}
		}
		look.Reset(reloadLook) // two looks never follow each other at once
	}
}
