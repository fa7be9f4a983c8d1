package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"execserver/client"
	"execserver/internal/cli"
	"execserver/protocol"
)

// minPrefix is the length from which on the beginning of an id stands for the id.
const minPrefix = 4

// errNoTarget says that nothing has the name or the id.
var errNoTarget = errors.New("there is no session or process")

// resolveProcess finds the process that a TARGET names. A session stands for its process:
// the only one that has not ended, or, if all have, the only one.
func resolveProcess(ctx context.Context, env *client.Environment, target string) (session client.SessionInfo, process string, err error) {
	l, err := listAll(ctx, env)
	if err != nil {
		return session, "", err
	}
	id, process, err := l.resolve(target)
	return l.session(id), process, err
}

// resolve returns the ids of the session and the process that a TARGET names.
func (l *listed) resolve(target string) (session, process string, err error) {
	session, process, err = l.find(target)
	if err != nil || process != "" {
		return session, process, err
	}
	found := l.processesOf(session)
	if live := slices.DeleteFunc(slices.Clone(found), hasEnded); len(live) > 0 {
		found = live
	}
	switch len(found) {
	case 0:
		return "", "", fmt.Errorf("the session %s has no process", l.nameOf(session))
	case 1:
		return session, found[0].ID, nil
	}
	return "", "", l.ambiguous(target, "has several processes", found, nil)
}

// listed is what runs at a server, as far as this user may see it.
type listed struct {
	sessions  []client.SessionInfo
	processes []client.ProcessInfo
}

// listAll lists the sessions and processes of a server, without the session of env itself.
func listAll(ctx context.Context, env *client.Environment) (*listed, error) {
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
	l := &listed{
		sessions:  slices.DeleteFunc(sessions, func(s client.SessionInfo) bool { return s.ID == own }),
		processes: slices.DeleteFunc(processes, func(p client.ProcessInfo) bool { return p.Session == own }),
	}
	return l, nil
}

// hasEnded reports whether only the output of a process is left.
func hasEnded(p client.ProcessInfo) bool { return p.State == protocol.StateClosed }

func (l *listed) processesOf(session string) (processes []client.ProcessInfo) {
	for _, p := range l.processes {
		if p.Session == session {
			processes = append(processes, p)
		}
	}
	return processes
}

// find finds what a TARGET names: a session by its name or id, a process by its id, or
// both as SESSION/PROCESS. The beginning of an id is enough if it has minPrefix characters
// and no other begins so. process is "" if the target is a session. An exact match comes
// before a beginning.
func (l *listed) find(target string) (session, process string, err error) {
	if first, second, ok := strings.Cut(target, "/"); ok {
		return l.findIn(target, first, second)
	}
	for _, match := range []func(id string) bool{
		func(id string) bool { return id == target },
		func(id string) bool { return len(target) >= minPrefix && strings.HasPrefix(id, target) },
	} {
		var sessions []client.SessionInfo
		var processes []client.ProcessInfo
		for _, s := range l.sessions {
			if match(s.ID) || s.Name == target && target != "" {
				sessions = append(sessions, s)
			}
		}
		for _, p := range l.processes {
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
	return "", "", fmt.Errorf("%w %s; exec-server ps -a lists them", errNoTarget, cli.Printable(target))
}

// findIn finds SESSION/PROCESS.
func (l *listed) findIn(target, first, second string) (session, process string, err error) {
	in := &listed{sessions: l.sessions}
	if session, _, err = in.find(first); err != nil {
		return "", "", err
	}
	of := &listed{processes: l.processesOf(session)}
	if _, process, err = of.find(second); err != nil {
		return "", "", fmt.Errorf("%s: %w", cli.Printable(target), err)
	}
	return session, process, nil
}

// maxCandidates bounds how many candidates an error lists.
const maxCandidates = 10

// ambiguous says which targets a person may have meant.
func (l *listed) ambiguous(target, problem string, processes []client.ProcessInfo, sessions []client.SessionInfo) error {
	var candidates []string
	for _, s := range sessions {
		candidates = append(candidates, "session "+l.nameOf(s.ID))
	}
	for _, p := range processes {
		candidates = append(candidates, l.nameOf(p.Session)+"/"+cli.Printable(p.ID)+" ("+commandLine(p, 40)+")")
	}
	if more := len(candidates) - maxCandidates; more > 0 {
		candidates = append(candidates[:maxCandidates], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%s %s: %s; name one of them", cli.Printable(target), problem, strings.Join(candidates, ", "))
}

// nameOf returns what a person calls a session: its name, or as much of its id as is
// necessary.
func (l *listed) nameOf(id string) string {
	const usual = 8
	length := min(usual, len(id))
	for _, s := range l.sessions {
		if s.ID == id && s.Name != "" {
			return cli.Printable(s.Name)
		}
		for s.ID != id && length < len(id) && strings.HasPrefix(s.ID, id[:length]) {
			length++
		}
	}
	return cli.Printable(id[:length])
}

// commandLine returns the arguments of a process in one line of at most width characters.
func commandLine(p client.ProcessInfo, width int) string {
	words := make([]string, len(p.Args))
	for i, arg := range p.Args {
		words[i] = cli.QuoteShell(arg)
	}
	text := cli.Printable(strings.Join(words, " "))
	if p.ArgsTruncated {
		text += " …"
	}
	if runes := []rune(text); width > 0 && len(runes) > width {
		text = string(runes[:width-1]) + "…"
	}
	return text
}

// completeTargets completes what runs at the server, with the command lines as
// descriptions.
func (w *where) completeTargets(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var targets []string
	w.ask(true, func(ctx context.Context, env *client.Environment) {
		l, err := listAll(ctx, env)
		if err != nil {
			return
		}
		for _, p := range l.processes {
			targets = append(targets, cobra.CompletionWithDesc(l.nameOf(p.Session)+"/"+cli.Printable(p.ID), commandLine(p, 60)))
		}
	})
	return targets, cobra.ShellCompDirectiveNoFileComp
}
