//go:build unix

package client_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"execserver/client"
	"execserver/protocol"
)

// mirror has a row for each method of the client, and for each of those of what they return.
var mirror = joined(mirrorCommands, mirrorFiles)

func joined(a, b map[string]row) map[string]row {
	both := maps.Clone(a)
	maps.Copy(both, b)
	return both
}

func readRecording(u *using) error {
	_, err := io.ReadAll(u.env.Recording(u, "unknown"))
	return err
}

var mirrorCommands = map[string]row{
	"Environment.Command": {use: func(u *using) error { return u.child("exit", "0").Run() }},
	"Environment.FS": {use: func(u *using) error {
		_, err := u.env.FS(u.dir).Stat(".")
		return err
	}},
	"Environment.Info":    {use: func(u *using) error { return check(u.env.Info().OS != "", "%+v", u.env.Info()) }},
	"Environment.Err":     {use: func(u *using) error { return u.env.Err() }},
	"Environment.Session": {use: func(u *using) error { return check(u.env.Session() != "", "no session") }},
	"Environment.Observing": {use: func(u *using) error {
		return check(!u.env.Observing(), "an owner that observes")
	}},
	"Environment.Close": {use: closeFresh},
	"Environment.Done":  {use: closeFresh},
	"Environment.Detach": {use: func(u *using) error {
		env := u.fresh(nil)
		err := env.Detach(u)
		if !u.shares {
			return check(errors.As(err, new(*client.UnsupportedError)), "detached from a session that ends: %v", err)
		}
		return err
	}},
	"Environment.Processes": {needs: "processList", use: func(u *using) error {
		c, err := u.idle()
		if err != nil {
			return err
		}
		list, listErr := u.env.Processes(u)
		found := slices.ContainsFunc(list, func(p client.ProcessInfo) bool { return p.ID == c.ID && p.State == "running" })
		return errors.Join(listErr, c.Terminate(u, 0), killed(c), check(found || listErr != nil, "%+v", list))
	}},
	"Environment.AllProcesses": {needs: "sessionList", use: func(u *using) error {
		c, err := u.idle()
		if err != nil {
			return err
		}
		list, listErr := u.env.AllProcesses(u)
		found := slices.ContainsFunc(list, func(p client.ProcessInfo) bool { return p.ID == c.ID && p.Session == u.env.Session() })
		return errors.Join(listErr, c.Terminate(u, 0), killed(c), check(found || listErr != nil, "%+v", list))
	}},
	"Environment.Usage": {needs: "processUsage", use: func(u *using) error {
		c, err := u.idle()
		if err != nil {
			return err
		}
		list, listErr := u.env.Usage(u)
		found := slices.ContainsFunc(list, func(p client.ProcessUsage) bool { return p.ID == c.ID && p.Processes == 1 })
		return errors.Join(listErr, c.Terminate(u, 0), killed(c), check(found || listErr != nil, "%+v", list))
	}},
	"Environment.AllUsage": {needs: "processUsage", use: func(u *using) error {
		c, err := u.idle()
		if err != nil {
			return err
		}
		list, listErr := u.env.AllUsage(u)
		found := slices.ContainsFunc(list, func(p client.ProcessUsage) bool { return p.ID == c.ID && p.Processes == 1 })
		return errors.Join(listErr, c.Terminate(u, 0), killed(c), check(found || listErr != nil, "%+v", list))
	}},
	"Environment.Sessions": {needs: "sessionList", use: func(u *using) error {
		list, err := u.env.Sessions(u)
		if err != nil {
			return err
		}
		return check(slices.ContainsFunc(list, func(s client.SessionInfo) bool { return s.ID == u.env.Session() }), "%+v", list)
	}},
	"Environment.WebLink": {needs: "webLink", use: func(u *using) error {
		_, _, err := u.env.WebLink(u)
		return err
	}},
	"Environment.Recordings": {needs: "recordings", use: func(u *using) error {
		_, err := u.env.Recordings(u)
		return err
	}},
	"Environment.Recording": {needs: "recordings", use: readRecording},
	"io.Reader.Read":        {needs: "recordings", use: readRecording},
	"Environment.Attach": {use: func(u *using) error {
		c, err := u.idle()
		if err != nil {
			return err
		}
		p, err := u.env.Attach(u, c.ID)
		_, missing := u.env.Attach(u, "nobody")
		return errors.Join(err, c.Terminate(u, 0), killed(c), check(p == c.Process, "another process"),
			check(errors.Is(missing, protocol.ErrInvalidRequest), "attached to nobody: %v", missing))
	}},
	"Environment.TakeOver": {use: func(u *using) error {
		if err := u.env.TakeOver(u); err != nil || !u.shares || !u.env.Info().Capabilities["sessionObserve"] {
			return err
		}
		owner := u.fresh(nil)
		observer := u.fresh(&client.Options{Observe: owner.Session()})
		err := observer.TakeOver(u)
		<-owner.Done()
		return errors.Join(err, check(errors.Is(owner.Err(), client.ErrTakenOver), "the owner ends with %v", owner.Err()))
	}},
	"Environment.Keep": {needs: "sessionKeep", use: func(u *using) error {
		env := u.fresh(nil)
		granted, err := env.Keep(u, client.Lease{For: time.Minute})
		if err != nil {
			return err
		}
		_, err = env.Keep(u, client.Lease{})
		return errors.Join(err, check(granted == time.Minute, "granted %s", granted))
	}},
	"Environment.EndSession": {needs: "sessionControl", use: func(u *using) error {
		other := u.fresh(&client.Options{RecoveryTimeout: -1})
		if err := u.env.EndSession(u, other.Session()); err != nil {
			return err
		}
		<-other.Done()
		return nil
	}},
	"Environment.SignalIn": {needs: "sessionControl", use: func(u *using) error {
		return elsewhere(u, func(session, id string) error { return u.env.SignalIn(u, session, id, syscall.SIGKILL) })
	}},
	"Environment.TerminateIn": {needs: "sessionControl", use: func(u *using) error {
		return elsewhere(u, func(session, id string) error { return u.env.TerminateIn(u, session, id, 0) })
	}},
	"Environment.Transport":       {use: roundTrip},
	"http.RoundTripper.RoundTrip": {use: roundTrip},
	"Environment.DialContext":     {needs: "tcpOpen", use: dialOnce},
	"net.Conn.Read":               {needs: "tcpOpen", use: dialOnce},
	"net.Conn.Write":              {needs: "tcpOpen", use: dialOnce},
	"net.Conn.Close":              {needs: "tcpOpen", use: dialOnce},
	"net.Conn.LocalAddr":          {needs: "tcpOpen", use: dialOnce},
	"net.Conn.RemoteAddr":         {needs: "tcpOpen", use: dialOnce},
	"net.Addr.Network":            {needs: "tcpOpen", use: dialOnce},
	"net.Addr.String":             {needs: "tcpOpen", use: dialOnce},
	"net.Conn.SetDeadline":        {needs: "tcpOpen", use: deadline(net.Conn.SetDeadline)},
	"net.Conn.SetReadDeadline":    {needs: "tcpOpen", use: deadline(net.Conn.SetReadDeadline)},
	"net.Conn.SetWriteDeadline":   {needs: "tcpOpen", use: writeDeadline},
	"Environment.Forward":         {needs: "tcpOpen", use: forwardOnce},
	"Forwarding.Addr":             {needs: "tcpOpen", use: forwardOnce},
	"Forwarding.Close":            {needs: "tcpOpen", use: forwardOnce},
	"Forwarding.Done":             {needs: "tcpOpen", use: forwardOnce},

	"Cmd.Run":   {use: func(u *using) error { return u.child("exit", "0").Run() }},
	"Cmd.Start": {use: startAndWait},
	"Cmd.Wait":  {use: startAndWait},
	"Cmd.Output": {use: func(u *using) error {
		out, err := u.child("echo", "hi").Output()
		return errors.Join(err, check(string(out) == "hi\n", "%q", out))
	}},
	"Cmd.CombinedOutput": {use: func(u *using) error {
		out, err := u.child("echo", "hi").CombinedOutput()
		return errors.Join(err, check(string(out) == "hi\n", "%q", out))
	}},
	"Cmd.Communicate": {needs: "processCloseStdin", use: func(u *using) error {
		out, _, err := u.child("cat").Communicate([]byte("hi"))
		if err != nil {
			return err
		}
		return check(string(out) == "hi", "%q", out)
	}},
	"Cmd.Collect": {use: func(u *using) error {
		c := u.child("echo", "hi")
		var live bytes.Buffer
		c.Stdout = &live
		s, err := c.Collect(u, time.Hour)
		return errors.Join(err, check(err != nil || string(s.Output) == "hi\n" && s.Exit.Success() && live.String() == "hi\n", "%+v, %q", s, &live))
	}},
	"Cmd.Follow": {use: func(u *using) error {
		c := u.child("echo", "hi")
		var out []byte
		c.Follow(client.Callbacks{Delta: func(_ string, data []byte) { out = append(out, data...) }})
		return errors.Join(c.Run(), check(string(out) == "hi\n", "%q", out))
	}},
	"Cmd.String": {use: func(u *using) error {
		text := u.env.Command(u, "a", "b").String()
		return check(text == "a b", "%q", text)
	}},
	"Cmd.StdinPipe":       {needs: "processCloseStdin", use: pipes},
	"Cmd.StdoutPipe":      {use: outputPipe((*client.Cmd).StdoutPipe)},
	"io.ReadCloser.Read":  {use: outputPipe((*client.Cmd).StdoutPipe)},
	"io.ReadCloser.Close": {use: outputPipe((*client.Cmd).StdoutPipe)},
	"Cmd.StderrPipe":      {use: outputPipe((*client.Cmd).StderrPipe)},

	"Process.Events": {use: func(u *using) error {
		c := u.child("echo", "hi")
		if err := c.Start(); err != nil {
			return err
		}
		var kinds []string
		for e, err := range c.Events(u) {
			if err != nil {
				return err
			}
			kinds = append(kinds, e.Kind.String())
		}
		return errors.Join(c.Wait(), check(kinds[len(kinds)-1] == "closed" && slices.Contains(kinds, "output"), "%q", kinds))
	}},
	"EventKind.String": {use: func(*using) error { return check(client.Exited.String() == "exited", "%s", client.Exited) }},
	"Process.EventsAfter": {use: func(u *using) error {
		c := u.child("echo", "hi")
		if err := c.Start(); err != nil {
			return err
		}
		last := client.Event{}
		for e, err := range c.EventsAfter(u, 1) {
			if err != nil {
				return err
			}
			last = e
		}
		return errors.Join(c.Wait(), check(last.Kind == client.Closed, "%+v", last))
	}},
	"Process.Copy": {use: func(u *using) error {
		c := u.child("echo", "hi")
		if err := c.Start(); err != nil {
			return err
		}
		var out bytes.Buffer
		err := c.Copy(u, &out, nil)
		return errors.Join(err, c.Wait(), check(out.String() == "hi\n", "%q", &out))
	}},
	"Process.Read": {use: func(u *using) error {
		c, err := u.idle()
		if err != nil {
			return err
		}
		r, err := c.Read(u, 0, 0)
		return errors.Join(err, c.Terminate(u, 0), killed(c), check(err != nil || r.Exit == nil && !r.Closed, "%+v", r))
	}},
	"Process.Changed": {use: func(u *using) error {
		c := u.child("exit", "0")
		if err := c.Start(); err != nil {
			return err
		}
		seen, err := c.Changed(u, 0)
		return errors.Join(err, c.Wait(), check(seen > 0, "the counter is %d", seen))
	}},
	"Process.Snapshot": {needs: "processSnapshot", use: func(u *using) error {
		c := u.child("echo", "hi")
		if err := c.Start(); err != nil {
			return err
		}
		s, err := c.Process.Snapshot(u, 0)
		return errors.Join(c.Wait(), err, check(err != nil || s.Stdout != nil, "%+v", s))
	}},
	"Process.Screen": {needs: "processScreen", use: func(u *using) error {
		c := u.child("exit", "0")
		if err := c.Start(); err != nil {
			return err
		}
		_, err := c.Process.Screen(u, nil)
		if errors.As(err, new(*client.UnsupportedError)) {
			return errors.Join(c.Wait(), err)
		}
		return errors.Join(c.Wait(), check(err != nil, "the screen of a process without a terminal"), check(errors.Is(err, protocol.ErrInvalidRequest), "%v", err))
	}},
	"Process.Signal": {needs: "processSignals", use: func(u *using) error {
		return ended(u, func(c *client.Cmd) error { return c.Signal(u, syscall.SIGTERM) })
	}},
	"Process.Terminate": {use: func(u *using) error {
		return ended(u, func(c *client.Cmd) error { return c.Terminate(u, 0) })
	}},
	"Process.Wait": {use: func(u *using) error {
		c := u.child("exit", "7")
		if err := c.Start(); err != nil {
			return err
		}
		exit, err := c.Process.Wait(u)
		return errors.Join(err, killed(c), check(err != nil || exit.ExitCode == 7, "%v", exit))
	}},
	"Exit.Success": {use: exitText},
	"Exit.String":  {use: exitText},
	"Process.Write": {use: func(u *using) error {
		c := u.child("cat")
		if _, err := c.StdinPipe(); err != nil {
			return err
		}
		return endedLate(u, c, func() error { return c.Write(u, []byte("hi")) })
	}},
	"Process.CloseStdin": {needs: "processCloseStdin", use: func(u *using) error {
		c := u.child("cat")
		if _, err := c.StdinPipe(); err != nil {
			return err
		}
		return endedLate(u, c, func() error { return c.CloseStdin(u) })
	}},
	"Process.Resize": {needs: "processResize", use: func(u *using) error {
		c := u.child("idle")
		c.TTY = &client.Size{Rows: 10, Cols: 20}
		return endedLate(u, c, func() error { return c.Resize(u, client.Size{Rows: 30, Cols: 40}) })
	}},
}

func closeFresh(u *using) error {
	env := u.fresh(nil)
	err := env.Close()
	<-env.Done()
	return errors.Join(err, check(errors.Is(env.Err(), client.ErrClosed), "%v", env.Err()))
}

// elsewhere ends a process of another session.
func elsewhere(u *using, end func(session, id string) error) error {
	other := u.env
	if u.shares {
		other = u.fresh(nil)
	}
	c := childContext(u, other, "idle")
	return endedLate(u, c, func() error { return end(other.Session(), c.ID) })
}

func roundTrip(u *using) error {
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi") }))
	defer far.Close()
	r, err := http.NewRequestWithContext(u, http.MethodGet, far.URL, http.NoBody)
	if err != nil {
		return err
	}
	response, err := u.env.Transport().RoundTrip(r)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(response.Body)
	return errors.Join(err, response.Body.Close(), check(string(body) == "hi", "%q", body))
}

func dialOnce(u *using) error {
	conn, err := u.env.DialContext(u, "tcp", u.echo)
	if err != nil {
		return err
	}
	defer conn.Close()
	return errors.Join(echoes(conn), check(conn.RemoteAddr().String() == u.echo && conn.RemoteAddr().Network() == "tcp", "%v", conn.RemoteAddr()),
		check(conn.LocalAddr().String() != "", "no local address"))
}

// echoes checks that a connection leads to the listener that echoes.
func echoes(conn net.Conn) error {
	if _, err := io.WriteString(conn, "hi"); err != nil {
		return err
	}
	got := make([]byte, 2)
	_, err := io.ReadFull(conn, got)
	return errors.Join(err, check(string(got) == "hi", "%q", got))
}

// deadline lets a Read wait until its deadline.
func deadline(set func(net.Conn, time.Time) error) func(*using) error {
	return func(u *using) error {
		conn, err := u.env.DialContext(u, "tcp", u.echo)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := set(conn, time.Now().Add(time.Millisecond)); err != nil {
			return err
		}
		_, err = conn.Read(make([]byte, 1))
		return check(errors.Is(err, os.ErrDeadlineExceeded), "%v", err)
	}
}

func writeDeadline(u *using) error {
	conn, err := u.env.DialContext(u, "tcp", u.echo)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(-time.Second)); err != nil {
		return err
	}
	_, err = conn.Write([]byte("hi"))
	return check(errors.Is(err, os.ErrDeadlineExceeded), "%v", err)
}

func forwardOnce(u *using) error {
	f, err := u.env.Forward(u, "127.0.0.1:0", "tcp", u.echo)
	if err != nil {
		return err
	}
	conn, err := new(net.Dialer).DialContext(u, "tcp", f.Addr().String())
	if err == nil {
		err = errors.Join(echoes(conn), conn.Close())
	}
	err = errors.Join(err, f.Close())
	<-f.Done()
	return err
}

func startAndWait(u *using) error {
	c := u.child("exit", "0")
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

func pipes(u *using) error {
	c := u.child("cat")
	stdin, err := c.StdinPipe()
	if err != nil {
		return err
	}
	var out bytes.Buffer
	c.Stdout = &out
	return errors.Join(endedLate(u, c, func() error {
		_, err := io.WriteString(stdin, "hi")
		if err == nil {
			err = stdin.Close()
		}
		if err == nil {
			_, err = c.Process.Wait(u)
		}
		return err
	}))
}

func outputPipe(pipe func(*client.Cmd) (io.ReadCloser, error)) func(*using) error {
	return func(u *using) error {
		c := u.env.Command(u, "/bin/sh", "-c", "echo hi; echo hi >&2")
		out, err := pipe(c)
		if err != nil {
			return err
		}
		if err := c.Start(); err != nil {
			return err
		}
		text, err := io.ReadAll(out)
		return errors.Join(err, c.Wait(), out.Close(), check(string(text) == "hi\n", "%q", text))
	}
}

// ended starts a process, and checks that end ends it.
func ended(u *using, end func(*client.Cmd) error) error {
	c, err := u.idle()
	if err != nil {
		return err
	}
	if err := end(c); err != nil {
		return errors.Join(err, c.Terminate(u, 0), killed(c))
	}
	return killed(c)
}

// endedLate starts a process, uses it and ends it.
func endedLate(u *using, c *client.Cmd, use func() error) error {
	if err := c.Start(); err != nil {
		return err
	}
	err := use()
	if endErr := c.Terminate(u, 0); endErr != nil && !errors.Is(endErr, os.ErrProcessDone) {
		err = errors.Join(err, endErr)
	}
	_ = c.Wait() // it was killed, or has ended itself
	return err
}

func exitText(u *using) error {
	err := u.child("exit", "7").Run()
	exit, ok := errors.AsType[*client.ExitError](err)
	return check(ok && !exit.Success() && strings.HasPrefix(exit.String(), "exit status 7"), "%v", err)
}
