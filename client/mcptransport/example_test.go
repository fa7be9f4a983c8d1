package mcptransport_test

import (
	"context"
	"fmt"
	"log"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"execserver/client/environments"
	"execserver/client/mcptransport"
)

// An MCP server is started on the machine of an environment, and asked for its
// tools.
func ExampleTransport() {
	ctx := context.Background()
	env, err := environments.Open(ctx, "box", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	command := env.Command(ctx, "mcp-server-git", "--repository", "/srv/work")
	session, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).
		Connect(ctx, &mcptransport.Transport{Command: command}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(tool.Name)
	}
}
