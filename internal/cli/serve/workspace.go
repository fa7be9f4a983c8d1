package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"execserver/internal/cli"
	"execserver/internal/cli/serve/workspace"
)

// parseWorkspaces parses --workspace.
func parseWorkspaces(texts []string) (list []workspace.Workspace, err error) {
	for _, text := range texts {
		w, err := workspace.Parse(text)
		if err != nil {
			return nil, cli.InvalidValue("workspace", text, err.Error())
		}
		list = append(list, w)
	}
	return list, nil
}

// showWorkspaces makes the directories of --workspace. It may re-execute this program, or let the
// supervisor start a server that sees them.
func (o *Flags) showWorkspaces(log *slog.Logger) error {
	if shownBySupervisor() {
		return nil
	}
	hidden, err := workspace.Prepare(o.workspaces)
	if err != nil {
		return fmt.Errorf("%w; to use another directory of this machine for it: --workspace PATH=DIRECTORY", err)
	}
	if len(hidden) == 0 {
		return nil
	}
	for _, w := range hidden {
		if w.Hides() {
			log.Warn("a workspace hides the files that are at its path", "path", w.Path, "shows", w.Source)
		}
	}
	mounting := workspace.Mount(hidden) // does not return if it succeeds
	if errors.Is(mounting, os.ErrPermission) && o.wantsSupervisor() {
		private, err := workspace.TryUserNamespace(hidden)
		if err == nil {
			log.Warn("workspaces are shown in a user namespace: sudo and other programs that change the user do not work there")
			o.private = private
			return nil
		}
		mounting = err // the error of Mount only means that this user is not root
	}
	if err := workspace.Link(hidden); err != nil {
		return fmt.Errorf("%w; and it cannot be mounted: %w; make an empty directory of that path as root, "+
			"remove a link that is there, or use a path that both machines have", err, mounting)
	}
	log.Info("workspaces are links, because they cannot be mounted", "reason", mounting)
	return nil
}
