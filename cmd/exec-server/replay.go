//go:build !core

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"execserver/internal/recording"
)

// replayOptions are the flags of replay.
type replayOptions struct {
	from     castSource
	speed    float64
	maxPause time.Duration
}

// maxSpeed bounds --speed.
const maxSpeed = 1000

func newReplayCommand() *cobra.Command {
	var o replayOptions
	command := &cobra.Command{
		Use:        "replay [flags] FILE|ID",
		Short:      "Show a recording of a process, with its times",
		GroupID:    groupLook,
		SuggestFor: []string{"play", "playback"},
		Long: "replay shows what a process did, as a server recorded it with --record: a FILE, or - for standard\n" +
			"input, or with --on or --url the ID that exec-server cast list shows, or a SESSION, a PROCESS or\n" +
			"SESSION/PROCESS, which means its newest recording. Recordings of asciinema can be shown, too. What the program wrote cannot\n" +
			"do more to your terminal than show text.\n\n" +
			"Keys: the space bar stops and continues; the right arrow skips 10 seconds; + and - change the speed;\n" +
			"q leaves. The output of a process with pipes goes to standard output and standard error.",
		Example: "  exec-server replay build.cast\n" +
			"  exec-server replay --on box --speed 4 --max-pause 1s build",
		Args: o.from.checkOne,
		RunE: func(command *cobra.Command, args []string) error {
			if err := o.from.where.check(command); err != nil {
				return err
			}
			switch {
			case !(o.speed >= 1./maxSpeed && o.speed <= maxSpeed):
				return &usageError{invalidValue("speed", fmt.Sprint(o.speed), fmt.Sprintf("must be from %g to %d", 1./maxSpeed, maxSpeed)), command}
			case o.maxPause < 0:
				return &usageError{invalidValue("max-pause", o.maxPause.String(), "must not be negative"), command}
			}
			return o.from.read(args[0], func(ctx context.Context, from io.Reader) error {
				return o.run(ctx, from, command.OutOrStdout())
			})
		},
	}
	f := command.Flags()
	f.SortFlags = false
	f.Float64Var(&o.speed, "speed", 1, "show it so many `times` as fast")
	f.DurationVar(&o.maxPause, "max-pause", 0, "shorten pauses to this `time` of the recording; 0 leaves them as they are")
	o.from.where.addFlags(f)
	f.BoolP("help", "h", false, "print this text")
	return command
}

// timedEvent is an event of a recording, or how it ends.
type timedEvent struct {
	recording.Event
	err error
}

func (o *replayOptions) run(ctx context.Context, from io.Reader, out io.Writer) error {
	shown, err := newShownCast(from)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	p := &player{opts: o, shown: shown, events: make(chan timedEvent), terminal: fullScreen{keyboard: os.Stdin}}
	go p.read(ctx) // ends with ctx, or with the program if standard input does not end
	_, shows := onTerminal(out)
	if shown.reader.Pipes() {
		return p.print(ctx, out, shows)
	}
	if from == os.Stdin {
		// The person is at the terminal all the same.
		if p.terminal.keyboard, err = openKeyboard(); err != nil {
			return fmt.Errorf("a recording of a terminal needs a terminal, for the keys: %w", err)
		}
		defer p.terminal.keyboard.Close()
	}
	if !shows || !term.IsTerminal(p.terminal.fd()) {
		return errors.New("a recording of a terminal needs a terminal; exec-server cast export --text prints what it showed at the end")
	}
	return p.play(ctx)
}

// openKeyboard opens the terminal of this program, whatever its standard input is.
func openKeyboard() (*os.File, error) {
	name := "/dev/tty"
	if runtime.GOOS == "windows" {
		name = "CONIN$"
	}
	return os.OpenFile(name, os.O_RDWR, 0)
}

// player shows a recording.
type player struct {
	opts     *replayOptions
	shown    *shownCast
	events   chan timedEvent
	terminal fullScreen

	at     time.Duration // of the recording: what is shown
	exit   string        // how the process ended
	skipTo time.Duration // of the recording: events up to here do not wait
	paused bool
	drawn  []string // rows on the terminal
}

// read reads events ahead.
func (p *player) read(ctx context.Context) {
	for {
		e, err := p.shown.reader.Next()
		select {
		case p.events <- timedEvent{e, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// pause is how long the recording lets an event wait.
func (p *player) pause(e recording.Event) time.Duration {
	pause := e.At - p.at
	if e.At <= p.skipTo {
		pause = 0
	}
	if most := p.opts.maxPause; most > 0 {
		pause = min(pause, most)
	}
	return pause
}

func (p *player) real(pause time.Duration) time.Duration {
	return time.Duration(float64(pause) / p.opts.speed)
}

// take shows an event.
func (p *player) take(e recording.Event) {
	p.at = max(p.at, e.At)
	p.shown.show(e)
	switch e.Kind {
	case recording.Exit:
		if p.exit == "" || p.shown.reader.Header().ExecServer == nil {
			p.exit = "exited with " + printable(e.Text)
		}
	case recording.Marker: // such as killed by SIGTERM
		if !e.IsGap() {
			p.exit = printable(e.Text)
		}
	}
}

// print prints the output of pipes. A terminal gets nothing but text and styles.
func (p *player) print(ctx context.Context, out io.Writer, safely bool) error {
	to := map[string]io.Writer{"stdout": out, "stderr": os.Stderr}
	if _, shows := onTerminal(os.Stderr); shows {
		to["stderr"] = &safeWriter{out: os.Stderr}
	}
	if safely {
		to["stdout"] = &safeWriter{out: out}
	}
	for {
		e := <-p.events
		if e.err != nil {
			for _, w := range to {
				if safe, ok := w.(*safeWriter); ok {
					_ = safe.flush() // as all that is printed at the end
				}
			}
			return p.shown.warnOfEnd(e.err)
		}
		select {
		case <-time.After(p.real(p.pause(e.Event))):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		p.at = e.At
		p.shown.note(e.Event)
		switch {
		case e.Kind == recording.Marker:
			fmt.Fprintf(os.Stderr, "Note: %s\n", printable(e.Text))
		case e.Kind == recording.Output && to[e.Stream] != nil:
			if _, err := io.WriteString(to[e.Stream], e.Text); err != nil {
				return err
			}
		}
	}
}

// safeWriter writes lines to a terminal without what could do more than show text in
// colours. It keeps an incomplete line until it is complete or long.
type safeWriter struct {
	out  io.Writer
	line []byte
}

// Write implements io.Writer.
func (w *safeWriter) Write(b []byte) (int, error) {
	for i, c := range b {
		if w.line = append(w.line, c); c == '\n' || len(w.line) >= maxLine {
			if err := w.flush(); err != nil {
				return i, err
			}
		}
	}
	return len(b), nil
}

func (w *safeWriter) flush() error {
	if len(w.line) == 0 {
		return nil
	}
	text := strings.TrimRight(string(w.line), "\r\n")
	w.line = w.line[:0]
	_, err := fmt.Fprintln(w.out, safeRow(strings.ReplaceAll(text, "\t", "    "))+"\x1b[0m")
	return err
}

// frame is the time between two pictures at least.
const frame = 33 * time.Millisecond

// skip is how far the right arrow leads.
const skip = 10 * time.Second

// play shows the recording of a terminal until its end, or until the person leaves.
func (p *player) play(ctx context.Context) error {
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, resizeSignal, continueSignal)
	defer signal.Stop(resized)
	if err := p.enter(); err != nil {
		return err
	}
	defer p.terminal.leave()
	want, keys := make(chan struct{}, 1), make(chan string)
	go p.terminal.readKeys(want, keys) // ends with the program
	want <- struct{}{}
	var next *timedEvent
	var left time.Duration // of the recording, until next
	began, drawnAt, dirty := time.Now(), time.Time{}, true
	for {
		if dirty && (next != nil && p.real(left) > frame || time.Since(drawnAt) >= frame) {
			if err := p.draw(); err != nil {
				return err
			}
			drawnAt, dirty = time.Now(), false
		}
		events, due, redraw := p.events, (<-chan time.Time)(nil), (<-chan time.Time)(nil)
		if next != nil {
			events = nil
			if !p.paused {
				due = time.After(p.real(left) - time.Since(began))
			}
		}
		if dirty {
			redraw = time.After(frame)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e := <-events:
			if e.err != nil {
				return p.finish(e.err)
			}
			next, left, began = &e, p.pause(e.Event), time.Now()
		case <-due:
			p.take(next.Event)
			next, dirty = nil, true
		case <-redraw:
		case <-resized:
			p.drawn, dirty = nil, true
		case text, open := <-keys:
			if !p.paused {
				left -= time.Duration(float64(time.Since(began)) * p.opts.speed)
			}
			began, dirty = time.Now(), true
			for key := range eachKey(text) {
				if key == "\x1b[C" || key == "\x1bOC" {
					left = p.skipAhead(next, left)
				} else if p.press(key) {
					return nil
				}
			}
			if !open {
				return nil
			}
			want <- struct{}{}
		}
	}
}

// skipAhead leads on, also in the middle of a pause, and returns what is left of it.
func (p *player) skipAhead(next *timedEvent, left time.Duration) time.Duration {
	now := p.at
	if next != nil {
		now = max(now, next.At-max(0, left))
	}
	p.skipTo = max(p.skipTo, now) + skip
	if next == nil {
		return left
	}
	return min(left, max(0, next.At-p.skipTo))
}

// press does what a key means. leaves ends the replay.
func (p *player) press(key string) (leaves bool) {
	switch key {
	case "q", "\x03":
		return true
	case "\x1a":
		p.terminal.leave()
		suspend()
		return p.enter() != nil
	case " ":
		p.paused = !p.paused
	case "+", "=":
		p.opts.speed = min(maxSpeed, p.opts.speed*2)
	case "-":
		p.opts.speed = max(1./maxSpeed, p.opts.speed/2)
	}
	return false
}

func (p *player) enter() error {
	p.drawn = nil
	return p.terminal.enter()
}

// finish leaves the last picture on the terminal.
func (p *player) finish(err error) error {
	p.terminal.leave()
	rows := p.shown.screen.StyledRows()
	for len(rows) > 0 && rows[len(rows)-1] == "" {
		rows = rows[:len(rows)-1]
	}
	for _, row := range rows {
		if _, err := os.Stdout.WriteString(safeRow(row) + "\r\n"); err != nil {
			return err
		}
	}
	if p.exit != "" {
		fmt.Fprintf(os.Stderr, "%s after %s\n", p.exit, shortDuration(p.at))
	}
	return p.shown.warnOfEnd(err)
}

// draw draws what has changed. Where the terminal has fewer rows than the recording, it
// shows those around the cursor.
func (p *player) draw() error {
	size := terminalSize(p.terminal.fd())
	width, height := max(20, int(size.Cols)), max(2, int(size.Rows))
	rows, _ := p.shown.screen.Size()
	row, col, visible := p.shown.screen.Cursor()
	first := min(max(0, row-(height-2)), max(0, rows-(height-1)))
	shown := p.shown.screen.StyledRows()[first:]
	lines := make([]string, height)
	for i := range lines[:height-1] {
		if i < len(shown) {
			lines[i] = safeRow(shown[i])
		}
	}
	lines[height-1] = "\x1b[7m" + cutRunes(p.status(), width) + "\x1b[0m"
	var text strings.Builder
	text.WriteString("\x1b[?25l")
	if p.drawn == nil {
		text.WriteString("\x1b[2J")
	}
	for i, line := range lines {
		if p.drawn == nil || i >= len(p.drawn) || p.drawn[i] != line {
			fmt.Fprintf(&text, "\x1b[%dH\x1b[2K%s", i+1, line)
		}
	}
	if visible && row-first < height-1 {
		fmt.Fprintf(&text, "\x1b[%d;%dH\x1b[?25h", row-first+1, col+1)
	}
	p.drawn = lines
	_, err := os.Stdout.WriteString(text.String())
	return err
}

// status is the last line.
func (p *player) status() string {
	state := fmt.Sprintf("%gx", p.opts.speed)
	if p.paused {
		state = "stopped"
	}
	seconds := int(p.at / time.Second)
	return fmt.Sprintf(" %d:%02d  %s  %s  space stop  → skip  + - speed  q leave ",
		seconds/60, seconds%60, state, printable(p.shown.reader.Header().Command))
}
