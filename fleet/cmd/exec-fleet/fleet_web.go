package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"execserver/internal/cli/show"
	"execserver/internal/cli/usage"
	"execserver/protocol"
)

func newWebCommand() *cobra.Command {
	var at fleetAt
	command := &cobra.Command{
		Use: "web [NAME]", Short: "Print a link to the page of a gateway",
		Long: "web prints a link to the page of a gateway that was started with --web: the machines that your token\n" +
			"may use, and what runs on each. With the name of a machine, the link leads there. It works once, within\n" +
			"a minute, for whoever opens it. The browser can then do what your token allows, for 12 hours or until\n" +
			"it signs out.",
		Example: "  xdg-open \"$(exec-fleet web --gateway wss://gateway:8765 --token-file ~/.token)\"",
		Args: func(command *cobra.Command, args []string) error {
			return usage.NoArgs(command, args[min(1, len(args)):])
		},
	}
	return subcommand(command, &at, func(ctx context.Context, args []string) error {
		query := ""
		if len(args) > 0 {
			query = url.Values{"machine": args}.Encode()
		}
		return at.printLink(ctx, query, command.OutOrStdout())
	})
}

// printLink prints a link to the page of the gateway, with a query.
func (a *fleetAt) printLink(ctx context.Context, query string, out io.Writer) error {
	text, err := a.ask(ctx, http.MethodPost, "/web/link")
	if refusal, ok := errors.AsType[*gatewayRefusal](err); ok && refusal.status == http.StatusNotFound {
		return errors.New("this gateway has no page; start it with --web")
	}
	if err != nil {
		return fmt.Errorf("cannot get a link to the page: %w", err)
	}
	var link protocol.WebLinkResult
	if err := json.Unmarshal(text, &link); err != nil {
		return errors.New("this is no gateway: its link to the page is not understood")
	}
	return show.PageLink(out, a.gateway, link.Path, query, time.Duration(link.LifeMs)*time.Millisecond)
}
