package main

import (
	"context"
	"fmt"
	"iter"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"execserver/client"
)

// topScreen is the terminal while top shows it. Only the goroutine of run uses it.
type topScreen struct {
	opts     *topOptions
	env      *client.Environment
	terminal fullScreen

	before, now *sample
	rows        []topRow
	chosen      topKey
	first       int         // row that is shown first
	asked       *topKey     // the process about whose end the person is asked
	message     string      // of the last action
	ended       chan string // results of actions
}

func newTopScreen(o *topOptions, env *client.Environment) *topScreen {
	return &topScreen{opts: o, env: env, terminal: fullScreen{keyboard: os.Stdin}, ended: make(chan string, 1)}
}

// sampled is the answer of the server, or why there is none.
type sampled struct {
	sample *sample
	err    error
}

// run shows what runs until the person leaves. It returns the arguments of attach if they
// chose to attach.
func (t *topScreen) run(ctx context.Context) (attach []string, err error) {
	first, err := takeSample(ctx, t.env)
	if err != nil {
		return nil, err
	}
	t.take(first)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	samples := make(chan sampled)
	go t.ask(ctx, samples) // ends with ctx
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, resizeSignal, continueSignal)
	defer signal.Stop(resized)
	if err := t.terminal.enter(); err != nil {
		return nil, err
	}
	defer t.terminal.leave()
	// It reads only one key ahead of what is wanted, so that attach gets all others.
	want, keys := make(chan struct{}, 1), make(chan string)
	go t.terminal.readKeys(want, keys)
	want <- struct{}{}
	tick := time.NewTicker(t.opts.interval) // for how long there is no answer
	defer tick.Stop()
	for {
		if err := t.draw(); err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case s := <-samples:
			if s.err != nil && t.env.Err() != nil {
				return nil, s.err
			}
			if s.err != nil {
				t.message = printable(s.err.Error())
				continue
			}
			t.take(s.sample)
		case t.message = <-t.ended:
		case <-resized:
		case <-tick.C:
		case text, open := <-keys:
			for key := range eachKey(text) {
				if attach, leaves := t.press(ctx, key); leaves {
					return attach, nil
				}
			}
			if !open {
				return nil, nil
			}
			want <- struct{}{}
		}
	}
}

// ask asks the server again and again.
func (t *topScreen) ask(ctx context.Context, samples chan<- sampled) {
	for {
		select {
		case <-time.After(t.opts.interval):
		case <-ctx.Done():
			return
		}
		s, err := takeSample(ctx, t.env)
		select {
		case samples <- sampled{s, err}:
		case <-ctx.Done():
			return
		}
	}
}

// eachKey yields the keys of a text that was read at once.
func eachKey(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for len(text) > 0 {
			n := 1
			if strings.HasPrefix(text, "\x1b[") || strings.HasPrefix(text, "\x1bO") {
				n = min(3, len(text)) // an arrow; other keys of this kind mean nothing here
			}
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
	}
}

// press does what a key means. leaves ends top.
func (t *topScreen) press(ctx context.Context, key string) (attach []string, leaves bool) {
	t.message = ""
	if asked := t.asked; asked != nil {
		t.asked = nil
		if key == "y" {
			t.message = "ending " + t.label(*asked) + " …"
			go t.end(ctx, *asked) // ends with the answer of the server, or with ctx
		}
		return nil, false
	}
	switch key {
	case "q", "\x03":
		return nil, true
	case "\x1a":
		t.terminal.leave()
		suspend()
		if err := t.terminal.enter(); err != nil {
			return nil, true
		}
	case "\x1b[A", "\x1bOA", "p":
		t.move(-1)
	case "\x1b[B", "\x1bOB", "n":
		t.move(1)
	case "s":
		order := topOrders[(slices.Index(topOrders, t.opts.sort)+1)%len(topOrders)]
		t.opts.sort = order
		t.rows = t.now.rows(t.before, order)
	case "a", "w":
		if len(t.rows) == 0 {
			break
		}
		attach = []string{t.chosen.session + "/" + t.chosen.process}
		if key == "w" {
			attach = append(attach, "--read-only")
		}
		return attach, true
	case "k":
		if len(t.rows) > 0 {
			asked := t.chosen
			t.asked = &asked
		}
	}
	return nil, false
}

// topGrace is the time between SIGTERM and SIGKILL for what k ends, as that of kill.
const topGrace = 5 * time.Second

func (t *topScreen) end(ctx context.Context, which topKey) {
	text := "ended " + which.process
	if err := t.env.TerminateIn(ctx, which.session, which.process, topGrace); err != nil {
		text = "cannot end " + which.process + ": " + err.Error()
	}
	select {
	case t.ended <- printable(text):
	case <-ctx.Done():
	}
}

func (t *topScreen) label(of topKey) string {
	return t.now.listed.nameOf(of.session) + "/" + printable(of.process)
}

// take shows another sample. The chosen process stays chosen.
func (t *topScreen) take(s *sample) {
	t.before, t.now = t.now, s
	t.rows = s.rows(t.before, t.opts.sort)
}

func (t *topScreen) index() int {
	return max(0, slices.IndexFunc(t.rows, func(r topRow) bool { return r.key == t.chosen }))
}

func (t *topScreen) move(by int) {
	if len(t.rows) > 0 {
		t.chosen = t.rows[min(max(0, t.index()+by), len(t.rows)-1)].key
	}
}

// draw draws everything.
func (t *topScreen) draw() error {
	size := terminalSize(t.terminal.fd())
	width, height := max(20, int(size.Cols)), max(4, int(size.Rows))
	t.move(0)
	room, at := height-3, t.index()
	t.first = min(max(t.first, at-room+1), at)
	rows := [][]string{topHeader}
	for _, row := range t.rows[t.first:min(len(t.rows), t.first+room)] {
		rows = append(rows, row.cells(t.now))
	}
	var table strings.Builder
	if err := printTable(&table, rows, 3, 4, 5, 6); err != nil {
		return err
	}
	lines := append([]string{t.summary()}, strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n")...)
	var text strings.Builder
	text.WriteString("\x1b[H")
	for i, line := range lines {
		line = cutRunes(line, width)
		if i == 2+at-t.first {
			line = "\x1b[7m" + line + "\x1b[0m"
		}
		text.WriteString(line + "\x1b[K\r\n")
	}
	text.WriteString("\x1b[J" + fmt.Sprintf("\x1b[%dH", height) + cutRunes(t.footer(), width) + "\x1b[K")
	_, err := os.Stdout.WriteString(text.String())
	return err
}

// cutRunes cuts a line to width characters.
func cutRunes(line string, width int) string {
	if runes := []rune(line); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return line
}

// summary is the first line.
func (t *topScreen) summary() string {
	attached := 0
	for _, s := range t.now.listed.sessions {
		if s.Attached {
			attached++
		}
	}
	text := fmt.Sprintf("%s  sessions: %d, %d attached  processes: %d  by %s  %s",
		printable(label(&t.opts.where)), len(t.now.listed.sessions), attached, len(t.rows), t.opts.sort, t.now.at.Format("15:04:05"))
	if age := time.Since(t.now.at); age > 3*t.opts.interval {
		text += "  no answer for " + shortDuration(age)
	}
	return text
}

// footer is the last line.
func (t *topScreen) footer() string {
	switch {
	case t.asked != nil:
		return "end " + t.label(*t.asked) + " with everything that it has started? y or n"
	case t.message != "":
		return t.message
	}
	return "q leave  ↑↓ choose  s sort  a attach  w watch  k end"
}
