package broker

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// The server writes a line for each attempt of a peer that is set up wrongly, which comes
// again and again. Only maxLines of them are written in each logWindow.
const (
	logWindow = 10 * time.Second
	maxLines  = 20
)

// logger writes the server's log.
type logger struct {
	log *slog.Logger

	mu     sync.Mutex
	window time.Time // when it began
	lines  int       // in it
}

func (l *logger) write(level slog.Level, format string, v []any) {
	text := fmt.Sprintf(format, v...)
	if strings.Contains(text, "authentication error") {
		return // Check logs it
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	if now := time.Now(); now.Sub(l.window) > logWindow {
		if more := l.lines - maxLines; more > 0 {
			l.log.Warn("NATS: more lines were left out", "lines", more)
		}
		l.window, l.lines = now, 0
	}
	if l.lines++; l.lines <= maxLines {
		l.log.Log(context.Background(), level, "NATS: "+text)
	}
}

func (l *logger) Noticef(format string, v ...any) { l.write(slog.LevelInfo, format, v) }
func (l *logger) Warnf(format string, v ...any)   { l.write(slog.LevelWarn, format, v) }
func (l *logger) Errorf(format string, v ...any)  { l.write(slog.LevelError, format, v) }
func (l *logger) Fatalf(format string, v ...any)  { l.write(slog.LevelError, format, v) }
func (l *logger) Debugf(string, ...any)           {}
func (l *logger) Tracef(string, ...any)           {}
