package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"execserver/client"
	"execserver/internal/cli"
	"execserver/protocol"
)

// keeping holds the flags for a session that run leaves on the server.
type keeping struct {
	time time.Duration
	name string // if empty, made from the name of the program
}

// defaultKeep is how long a session is kept.
const defaultKeep = 8 * time.Hour

// addFlags defines --keep and --name. when describes when they apply.
func (k *keeping) addFlags(f *pflag.FlagSet, when string) {
	f.DurationVar(&k.time, "keep", defaultKeep, when+": end the session and its commands after this `TIME` without a client")
	f.StringVar(&k.name, "name", "", when+": the `NAME` of the session (default: that of the program)")
}

// checkSessionName refuses a --name that no server accepts.
func checkSessionName(name string) error {
	switch {
	case name == "":
		return errors.New("--name is empty; give it a value, or leave it out")
	case !protocol.IsSessionName(name):
		return cli.InvalidValue("name", name, fmt.Sprintf("expected at most %d of the characters A-Z a-z 0-9 . _ @ -", protocol.MaxSessionName))
	}
	return nil
}

// keepTimeout bounds a request that keeps a session.
const keepTimeout = 5 * time.Second

// keepNames bounds the names that keep tries.
const keepNames = 100

// keep makes the server keep the session, under the given name or one like the name of the
// program.
func (k *keeping) keep(ctx context.Context, env *client.Environment, program string) (granted time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	if k.name != "" {
		return env.Keep(ctx, k.lease(k.name))
	}
	base := sessionName(program)
	for i := range keepNames {
		name := base
		if i > 0 {
			name += "-" + strconv.Itoa(i+1)
		}
		granted, err = env.Keep(ctx, k.lease(name))
		if refused, ok := errors.AsType[*protocol.Error](err); !ok || refused.Code != protocol.CodeInvalidRequest {
			k.name = name
			return granted, err
		}
	}
	return 0, err
}

// lease returns a lease that evicts output, because a command without a reader must not block.
func (k *keeping) lease(name string) client.Lease {
	return client.Lease{Name: name, For: k.time, EvictOutput: true}
}

// sessionName makes a session name from the name of a program.
func sessionName(program string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("._@-", r):
			return r
		}
		return -1
	}, path.Base(strings.ReplaceAll(program, `\`, "/")))
	if name == "" {
		return "command"
	}
	return name[:min(len(name), protocol.MaxSessionName-len("-100"))]
}

// keepable returns the reason why the server cannot keep the session, or nil.
func keepable(env *client.Environment) error {
	switch kept := env.Info().SessionLifetime; {
	case kept == nil:
		return errors.New("this server keeps no session without a connection; " + cli.ToServe)
	case kept.MaxKeep == 0 || !env.Info().Capabilities["sessionKeep"]:
		return errors.New("this server keeps sessions only for " + kept.Detached.String())
	}
	return nil
}

// leaveRunning starts the command and detaches. It keeps the session first, so that no command
// starts that cannot be kept.
func (o *runOptions) leaveRunning(ctx context.Context, r *runner, c *client.Cmd) error {
	if err := keepable(r.env); err != nil {
		return fmt.Errorf("cannot leave the command running: %w", err)
	}
	if o.tty {
		o.onTerminal(ctx, r.env, c)
	}
	if o.interact || o.tty {
		if _, err := c.StdinPipe(); err != nil {
			return err
		}
	}
	granted, err := o.keeping.keep(ctx, r.env, c.Path)
	if err != nil {
		return fmt.Errorf("cannot leave the command running: %w", err)
	}
	if err := c.Start(); err != nil {
		// Release the empty session. ctx may have ended.
		ctx, cancel := context.WithTimeout(context.Background(), keepTimeout)
		defer cancel()
		_, _ = r.env.Keep(ctx, client.Lease{})
		return err
	}
	detachCtx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	if err := r.env.Detach(detachCtx); err != nil {
		return err
	}
	fmt.Println(o.keeping.name)
	fmt.Fprintf(os.Stderr, "kept for %s\n%s\n", cli.Spell(granted), o.machine.ReattachHint(r.env.Info(), "come back with", o.keeping.name))
	return nil
}

// detach leaves the session on the server at the request of the user.
func (r *runner) detach() error {
	if err := keepable(r.env); err != nil {
		return err
	}
	session := r.env.Session()
	text := ""
	if r.link.Get().Down {
		text = fmt.Sprintf("detached while the link is down; the server keeps the command for %s after it notices", cli.Spell(r.env.Info().SessionLifetime.Detached))
	} else {
		granted, err := r.keeping.keep(context.Background(), r.env, r.program)
		if err != nil {
			return err
		}
		if r.keeping.name != "" {
			session = r.keeping.name
		}
		ctx, cancel := context.WithTimeout(context.Background(), keepTimeout)
		defer cancel()
		if err := r.env.Detach(ctx); err != nil {
			return err
		}
		text = "detached; kept for " + cli.Spell(granted)
	}
	r.left, r.parting = true, text+"\n"+r.machine.ReattachHint(r.env.Info(), "come back with", session)
	return nil
}

// maxBehind bounds the programs that reportBackground lists.
const maxBehind = 3

// reportBackground sets the parting line to the background programs of the command. With keep, it
// asks the server to keep their session.
func (r *runner) reportBackground(ctx context.Context, keep bool) {
	kept := r.env.Info().SessionLifetime
	if kept == nil || r.link.Get().Down {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	processes, err := r.env.Processes(ctx)
	if err != nil {
		return // the result of the command matters more
	}
	var left []string
	for _, p := range processes {
		if p.Parent == r.process.ID {
			left = append(left, fmt.Sprintf("%s (process %d)", cli.CommandLine(p, 60), p.PID))
		}
	}
	if len(left) == 0 {
		return
	}
	if more := len(left) - maxBehind; more > 0 {
		left = append(left[:maxBehind], fmt.Sprintf("%d more", more))
	}
	text := "left in the background: " + strings.Join(left, ", ") + "; "
	if !keep {
		r.parting = text + fmt.Sprintf("the server ends it %s after run; -d or --keep keeps it", cli.Spell(kept.Detached))
		return
	}
	granted, err := r.keeping.keep(ctx, r.env, r.program)
	if err != nil {
		r.parting = text + fmt.Sprintf("cannot keep it: %s; the server ends it %s after run", cli.ErrorLine(err), cli.Spell(kept.Detached))
		return
	}
	r.parting = text + fmt.Sprintf("the server keeps it for %s as the session %s", cli.Spell(granted), cli.Printable(r.keeping.name))
}
