package connect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"execserver/internal/cli"
	"execserver/internal/cli/connect/bootstrap"
	"execserver/internal/cli/connect/relay"
	"execserver/internal/stream"
)

// far is a server on the other machine, as its clients use it.
type far interface {
	io.ReadWriter
	CloseWrite() error // tells the server that its client says nothing more
	End()              // ends the connection, and waits for that
}

// lasting is a connection to a server on the other machine that survives its links. A link is a run
// of the command, at whose other end is a relay.
type lasting struct {
	*stream.Conn
	c      *connecting
	report func(arrived, size int64) // of an upload, over the first link; may be nil
	pace   pace
	stderr *quietWriter // of the first link

	// For the goroutine that makes links.
	again    bool  // there was one
	linkErr  error // of the last attempt
	attempts int   // since a link was lost

	links sync.WaitGroup // that are not closed yet
	end   sync.Once

	mu     sync.Mutex
	lost   time.Time // when the link was lost; zero with a link
	ending bool      // the client has said its last
	gone   error     // why there will be no other link
}

// maxBegins is how often a stream is begun. The server may end just when a relay has found it.
const maxBegins = 3

// openLasting connects to the server on the other machine, which the first link may start.
func (c *connecting) openLasting(ctx context.Context, report func(arrived, size int64)) (*lasting, error) {
	l := &lasting{c: c, report: report, stderr: &quietWriter{Writer: remoteStderr()}}
	for begun := 1; ; begun++ {
		conn, err := stream.Dial(ctx, stream.Options{Link: l.link, Lost: l.noteLost, Back: l.noteBack})
		switch {
		case err == nil:
			l.Conn = conn
			l.stderr.quiet.Store(true) // ssh would complain about a broken link as well
			return l, nil
		case ctx.Err() == nil && begun < maxBegins && (errors.Is(err, stream.Ended) || errors.Is(err, io.EOF)):
			continue
		case l.failure() != nil:
			err = l.failure()
		case l.linkErr == nil && ctx.Err() == nil:
			err = fmt.Errorf("connect by %s: %w", c.name, err)
		}
		l.links.Wait()
		return nil, err
	}
}

// linkTimeout bounds an attempt to make another link. A packet that was lost is repeated within
// this time, but the address of this machine may have changed since, and then no answer ever comes.
const linkTimeout = 30 * time.Second

// link makes a link. It is a stream.Options.Link.
func (l *lasting) link(ctx context.Context) (_ io.ReadWriteCloser, err error) {
	defer func() { l.linkErr = err }()
	if l.again {
		if err := l.pace.wait(ctx); err != nil {
			return nil, err
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, linkTimeout, fmt.Errorf("the command did not connect within %s", linkTimeout))
		defer cancel()
	}
	session, err := l.startRelay(ctx)
	if err == nil {
		err = l.await(ctx, session)
	}
	if err != nil {
		l.pace.failed()
		return nil, err
	}
	l.links.Add(1)
	return &relayed{Session: session, l: l, since: time.Now()}, nil
}

// startRelay starts a relay on the other machine. Only the first one may ask or tell the user
// anything, because a client may have the terminal later.
func (l *lasting) startRelay(ctx context.Context) (*bootstrap.Session, error) {
	c := l.c
	o := relay.Options{Dir: c.remoteDir, Start: !l.again, Upgrade: c.upgrade && !l.again, Flags: c.serve}
	said := &lastLine{}
	stderr := io.Writer(said)
	if !l.again {
		stderr = l.stderr
	}
	theirs, copied, err := copyTo(stderr)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	if !l.again {
		return c.start(ctx, o.Args(), theirs, l.report)
	}
	command := exec.Command(c.words[0], c.wordsAgain(l.attempts)...)
	l.attempts++
	command.Stderr = theirs
	command.Env = append(command.Environ(), "SSH_ASKPASS_REQUIRE=never")
	detach(command)
	session, err := bootstrap.Start(ctx, command, &bootstrap.Options{
		Releases: c.releases(), Version: c.version, Dir: c.remoteDir, Typed: c.typed, Args: o.Args(),
		Silence: linkTimeout, Silent: func() {},
	})
	if err == nil {
		return session, nil
	}
	_ = theirs.Close()
	select {
	case <-copied:
	case <-time.After(time.Second): // another process of ssh has it
	}
	if text := said.String(); text != "" {
		err = fmt.Errorf("%w; it said: %s", err, text)
	}
	return nil, err
}

// copyTo returns a file whose content is copied to w. Unlike with the writer itself, exec.Cmd.Wait does
// not wait for a process in the background that has the file, such as a shared connection of ssh.
func copyTo(w io.Writer) (file *os.File, copied <-chan struct{}, err error) {
	ours, file, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	done := make(chan struct{})
	go func() { // ends when every process has closed the file
		defer close(done)
		defer ours.Close()
		_, _ = io.Copy(w, ours)
	}()
	return file, done, nil
}

// wordsAgain returns the arguments of the command for another link. For ssh the first of two settings
// counts. A connection that ssh shares may be the one that was lost, so the first attempt
// makes its own; but the machine may admit only a shared one without a prompt.
func (c *connecting) wordsAgain(attempts int) (words []string) {
	if c.isSSH {
		words = append(words, "-o", "BatchMode=yes")
		if attempts%2 == 0 {
			words = append(words, "-o", "ControlPath=none")
		}
	}
	return append(words, c.words[1:]...)
}

// await waits until the relay has connected to the server.
func (l *lasting) await(ctx context.Context, session *bootstrap.Session) error {
	stop := context.AfterFunc(ctx, session.Kill)
	line, err := session.Line()
	switch {
	case !stop():
		err = context.Cause(ctx)
	case err != nil:
		session.End()
		err = l.c.unanswered(session.Wait())
	default:
		err = l.answered(line)
	}
	if err != nil {
		session.End()
	}
	return err
}

// answered draws the conclusion from the answer of a relay.
func (l *lasting) answered(line string) error {
	answer, text, ok := relay.Parse(line)
	switch {
	case !ok:
		return fmt.Errorf("connect by %s: unexpected output of the other machine: %q", l.c.name, line)
	case answer == relay.Ready:
		return nil
	case answer == relay.Gone:
		l.giveUp(fmt.Errorf("the server on the other machine has ended, and what it ran; connect by %s starts another one", l.c.name))
		return fmt.Errorf("%w: %w", relay.ErrGone, stream.Unknown)
	}
	return &cli.Failure{Text: fmt.Sprintf("connect by %s: on the other machine: %s", l.c.name, text), Code: 1}
}

// giveUp records why there will be no other link.
func (l *lasting) giveUp(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone = err
}

func (l *lasting) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone
}

// noteLost is a stream.Options.Lost.
func (l *lasting) noteLost(cause error) {
	l.again, l.attempts = true, 0
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = time.Now()
	text := cause.Error()
	if errors.Is(cause, io.EOF) {
		text = "the command has ended"
	}
	if l.ending {
		l.closeSoon()
		return
	}
	l.c.say("the link by %s is lost (%s); connecting again", l.c.name, text)
}

// noteBack is a stream.Options.Back.
func (l *lasting) noteBack() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ending {
		l.c.say("the link by %s is back after %s", l.c.name, cli.Spell(max(time.Second, time.Since(l.lost).Round(time.Second))))
	}
	l.lost = time.Time{}
}

// farewellTimeout bounds how long the end of a client may take to reach the server. client.Launch
// kills this program after 2 seconds.
const farewellTimeout = 1500 * time.Millisecond

// closeSoon closes the stream of a client that sends nothing more, unless a link comes back in time.
// l.mu is held.
func (l *lasting) closeSoon() {
	lost := l.lost
	time.AfterFunc(farewellTimeout, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.lost == lost {
			_ = l.Close()
		}
	})
}

// sayLast records that the client says nothing more.
func (l *lasting) sayLast() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ending && !l.lost.IsZero() {
		l.closeSoon()
	}
	l.ending = true
}

func (l *lasting) isEnding() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ending
}

// Read implements far.
func (l *lasting) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if n > 0 {
		l.SetWaiting(false)
	}
	return n, err
}

// Write implements far. What the client sends is mostly a request, so a dead link is noticed early
// until something comes back.
func (l *lasting) Write(b []byte) (int, error) {
	l.SetWaiting(true)
	return l.Conn.Write(b)
}

// CloseWrite implements far.
func (l *lasting) CloseWrite() error {
	l.sayLast()
	return l.Conn.CloseWrite()
}

// End implements far. The server may learn of it only if there is a link.
func (l *lasting) End() {
	l.end.Do(func() {
		l.sayLast()
		_ = l.Close()
		ended := make(chan struct{})
		go func() { // ends at the latest when the last link is killed
			defer close(ended)
			<-l.Done()
			l.links.Wait()
		}()
		select {
		case <-ended:
		case <-time.After(farewellTimeout):
		}
	})
}

// Err returns why the connection has ended, as users understand it.
func (l *lasting) Err() error {
	err := l.Conn.Err()
	switch gone := l.failure(); {
	case err == nil:
		return nil
	case gone != nil:
		return &cli.Failure{Text: gone.Error(), Code: 1}
	case errors.Is(err, stream.Unknown):
		err = errors.New("the server on the other machine was started again, and what it ran has ended")
	case errors.Is(err, stream.Ended):
		err = errors.New("the server on the other machine has ended")
	}
	return &cli.Failure{Text: fmt.Sprintf("connect by %s: %s", l.c.name, err), Code: 1}
}

// relayed is a link.
type relayed struct {
	*bootstrap.Session
	l     *lasting
	since time.Time
}

// Close implements io.Closer. The command of a link that is of no use any more may hang, but at the
// end it must pass on the last bytes.
func (r *relayed) Close() error {
	defer r.l.links.Done()
	if !r.l.isEnding() {
		r.Kill()
	}
	r.End()
	r.l.pace.ended(time.Since(r.since))
	return nil
}

// pace makes pauses between commands that do not connect. A machine may refuse an address that tries
// too often.
type pace struct {
	mu       sync.Mutex
	failures int       // since a link that lasted
	last     time.Time // when the last command failed
}

const (
	firstPause = time.Second
	maxPause   = 30 * time.Second

	// lasted is the age of a link that shows that the machine accepts this one again.
	lasted = 15 * time.Second
)

// wait waits until the next attempt is due.
func (p *pace) wait(ctx context.Context) error {
	p.mu.Lock()
	pause := time.Duration(0)
	if p.failures > 0 {
		pause = maxPause
		if doublings := p.failures - 1; doublings < 5 {
			pause = min(firstPause<<doublings, maxPause)
		}
		pause -= time.Since(p.last) // the stream makes pauses too
	}
	p.mu.Unlock()
	select {
	case <-time.After(pause):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// failed counts a command that ended before its relay answered.
func (p *pace) failed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures++
	p.last = time.Now()
}

// ended takes the age of a link that has ended.
func (p *pace) ended(age time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if age >= lasted {
		p.failures = 0
	}
}

// lastLine keeps the last line that is written to it.
type lastLine struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (w *lastLine) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, b...)
	if whole := bytes.TrimRight(w.text, "\r\n"); len(whole) > 0 {
		from := bytes.LastIndexByte(whole, '\n') + 1
		w.text = append([]byte(nil), w.text[max(from, len(w.text)-maxLine):]...)
	}
	return len(b), nil
}

func (w *lastLine) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(string(w.text))
}

// notes are lines for the user. They are lost if standard error is full, so that nothing waits for it.
type notes struct {
	lines chan string
	once  sync.Once
}

// say prints a line.
func (c *connecting) say(format string, args ...any) {
	n := &c.notes
	n.once.Do(func() {
		n.lines = make(chan string, 16)
		go func() { // ends with the program
			for line := range n.lines {
				fmt.Fprintln(os.Stderr, line)
			}
		}()
	})
	select {
	case n.lines <- "exec-server: " + cli.Printable(fmt.Sprintf(format, args...)):
	default:
	}
}

// quietWriter passes on what is written to it until it is quiet.
type quietWriter struct {
	io.Writer
	quiet atomic.Bool
}

// Write implements io.Writer.
func (w *quietWriter) Write(b []byte) (int, error) {
	if w.quiet.Load() {
		return len(b), nil
	}
	return w.Writer.Write(b)
}
