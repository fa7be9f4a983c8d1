package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"execserver/client"
	"execserver/protocol"
)

// minPrefix is the length of the shortest prefix that can stand for an id.
const minPrefix = 4

// ErrNoTarget means that no session or process has the name or the id.
var ErrNoTarget = errors.New("there is no session or process")

// ResolveProcess finds the process that a TARGET names. A session stands for its only live
// process or, if all have ended, for its only process.
func ResolveProcess(ctx context.Context, env *client.Environment, target string) (session client.SessionInfo, process string, err error) {
	l, err := List(ctx, env)
	if err != nil {
		return session, "", err
	}
	id, process, err := l.resolve(target)
	return l.Session(id), process, err
}

// resolve returns the ids of the session and the process that a TARGET names.
func (l *Listing) resolve(target string) (session, process string, err error) {
	session, process, err = l.Find(target)
	if err != nil || process != "" {
		return session, process, err
	}
	found := l.processesOf(session)
	if live := slices.DeleteFunc(slices.Clone(found), HasEnded); len(live) > 0 {
		found = live
	}
	switch len(found) {
	case 0:
		return "", "", fmt.Errorf("the session %s has no process", l.SessionLabel(session))
	case 1:
		return session, found[0].ID, nil
	}
	return "", "", l.ambiguous(target, "has several processes", found, nil)
}

// Listing holds the sessions and processes of a server that this user may see.
type Listing struct {
	Sessions  []client.SessionInfo
	Processes []client.ProcessInfo
}

// List lists the sessions and processes of a server, without the session of env itself.
func List(ctx context.Context, env *client.Environment) (*Listing, error) {
	sessions, err := env.Sessions(ctx)
	if err != nil && !errors.Is(err, client.ErrTruncated) {
		return nil, fmt.Errorf("cannot list the sessions: %w", err)
	}
	processes, err := env.AllProcesses(ctx)
	switch {
	case errors.Is(err, client.ErrTruncated):
		fmt.Fprintln(os.Stderr, "Warning: the server has more sessions and processes than it lists")
	case err != nil:
		return nil, fmt.Errorf("cannot list the processes: %w", err)
	}
	own := env.Session()
	l := &Listing{
		Sessions:  slices.DeleteFunc(sessions, func(s client.SessionInfo) bool { return s.ID == own }),
		Processes: slices.DeleteFunc(processes, func(p client.ProcessInfo) bool { return p.Session == own }),
	}
	return l, nil
}

// HasEnded reports whether a process has closed, so that only its output remains.
func HasEnded(p client.ProcessInfo) bool { return p.State == protocol.StateClosed }

func (l *Listing) processesOf(session string) (processes []client.ProcessInfo) {
	for _, p := range l.Processes {
		if p.Session == session {
			processes = append(processes, p)
		}
	}
	return processes
}

// Find resolves a TARGET: a session by its name or id, a process by its id, or both as
// SESSION/PROCESS. A unique prefix of at least minPrefix characters can replace an id; an exact
// match wins. process is "" if the target is a session.
func (l *Listing) Find(target string) (session, process string, err error) {
	if first, second, ok := strings.Cut(target, "/"); ok {
		return l.findIn(target, first, second)
	}
	for _, match := range []func(id string) bool{
		func(id string) bool { return id == target },
		func(id string) bool { return len(target) >= minPrefix && strings.HasPrefix(id, target) },
	} {
		var sessions []client.SessionInfo
		var processes []client.ProcessInfo
		for _, s := range l.Sessions {
			if match(s.ID) || s.Name == target && target != "" {
				sessions = append(sessions, s)
			}
		}
		for _, p := range l.Processes {
			if match(p.ID) {
				processes = append(processes, p)
			}
		}
		switch {
		case len(sessions)+len(processes) > 1:
			return "", "", l.ambiguous(target, "is ambiguous", processes, sessions)
		case len(sessions) == 1:
			return sessions[0].ID, "", nil
		case len(processes) == 1:
			return processes[0].Session, processes[0].ID, nil
		}
	}
	return "", "", fmt.Errorf("%w %s; exec-server ps -a lists them", ErrNoTarget, Printable(target))
}

// findIn finds SESSION/PROCESS.
func (l *Listing) findIn(target, first, second string) (session, process string, err error) {
	in := &Listing{Sessions: l.Sessions}
	if session, _, err = in.Find(first); err != nil {
		return "", "", err
	}
	of := &Listing{Processes: l.processesOf(session)}
	if _, process, err = of.Find(second); err != nil {
		return "", "", fmt.Errorf("%s: %w", Printable(target), err)
	}
	return session, process, nil
}

// maxCandidates bounds how many candidates an error lists.
const maxCandidates = 10

// ambiguous returns an error that lists the candidates for a target.
func (l *Listing) ambiguous(target, problem string, processes []client.ProcessInfo, sessions []client.SessionInfo) error {
	var candidates []string
	for _, s := range sessions {
		candidates = append(candidates, "session "+l.SessionLabel(s.ID))
	}
	for _, p := range processes {
		candidates = append(candidates, l.SessionLabel(p.Session)+"/"+Printable(p.ID)+" ("+CommandLine(p, 40)+")")
	}
	if more := len(candidates) - maxCandidates; more > 0 {
		candidates = append(candidates[:maxCandidates], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%s %s: %s; name one of them", Printable(target), problem, strings.Join(candidates, ", "))
}

// Session returns a session, or only its id if the session is newer than the listing.
func (l *Listing) Session(id string) client.SessionInfo {
	for _, s := range l.Sessions {
		if s.ID == id {
			return s
		}
	}
	return client.SessionInfo{ID: id}
}

// SessionLabel returns the name of a session or, without one, a unique prefix of its id.
func (l *Listing) SessionLabel(id string) string {
	const usual = 8
	length := min(usual, len(id))
	for _, s := range l.Sessions {
		if s.ID == id && s.Name != "" {
			return Printable(s.Name)
		}
		for s.ID != id && length < len(id) && strings.HasPrefix(s.ID, id[:length]) {
			length++
		}
	}
	return Printable(id[:length])
}

// CommandLine returns the arguments of a process on one line, cut after width characters unless
// width is 0.
func CommandLine(p client.ProcessInfo, width int) string {
	words := make([]string, len(p.Args))
	for i, arg := range p.Args {
		words[i] = QuoteShell(arg)
	}
	text := Printable(strings.Join(words, " "))
	if p.ArgsTruncated {
		text += " …"
	}
	if runes := []rune(text); width > 0 && len(runes) > width {
		text = string(runes[:width-1]) + "…"
	}
	return text
}
