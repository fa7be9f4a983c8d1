package mcptransport_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"execserver/client"
	"execserver/client/local"
	"execserver/client/mcptransport"
	"execserver/internal/testkit"
	"execserver/server"
	"execserver/transport"
)

// These make the test program an MCP server, and an exec-server, on stdio.
const (
	mcpVariable   = "EXEC_SERVER_TEST_MCP"
	serveVariable = "EXEC_SERVER_TEST_SERVE"
)

type greeting struct {
	Name string `json:"name"`
}

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(mcpVariable) != "":
		serveMCP()
		os.Exit(0)
	case os.Getenv(serveVariable) != "":
		os.Unsetenv(serveVariable)
		_ = server.New(nil).ServeOnly(transport.NewLines("stdio", os.Stdin, os.Stdout, os.Stdin.Close, 0))
		os.Exit(0)
	}
	testkit.VerifyMain(m)
}

// serveMCP offers one tool. A stubborn server does not care for its stdin.
func serveMCP() {
	s := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "greet", Description: "greets"},
		func(_ context.Context, _ *mcp.CallToolRequest, in greeting) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "hello " + in.Name}}}, nil, nil
		})
	var t mcp.Transport = &mcp.StdioTransport{}
	if os.Getenv(mcpVariable) == "deaf" {
		t = &mcp.IOTransport{Reader: &deafReader{ReadCloser: os.Stdin}, Writer: os.Stdout}
	}
	_ = s.Run(context.Background(), t)
	if os.Getenv(mcpVariable) == "stubborn" {
		time.Sleep(time.Hour) // not select {}, which the runtime may take for a deadlock
	}
}

// deafReader reads a little and then nothing more.
type deafReader struct {
	io.ReadCloser
	n int
}

func (r *deafReader) Read(b []byte) (int, error) {
	if r.n > 64<<10 {
		time.Sleep(time.Hour)
	}
	n, err := r.ReadCloser.Read(b)
	r.n += n
	return n, err
}

// command starts the test program as an MCP server.
func command(t *testing.T, env *client.Environment, how string) *client.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := env.Command(context.Background(), self)
	c.EnvPolicy = client.InheritAll()
	c.Env = []string{mcpVariable + "=" + how}
	return c
}

func openLocal(t *testing.T) *client.Environment {
	t.Helper()
	env, err := local.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Close() })
	return env
}

// launched is an environment behind a connection.
func launched(t *testing.T) *client.Environment {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(self)
	command.Env = append(os.Environ(), serveVariable+"=1")
	env, err := client.Launch(context.Background(), command, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = env.Close() })
	return env
}

// A tool of a server that runs in an environment can be called, however long
// what is said.
func TestToolCall(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *client.Environment{"local": openLocal, "stdio": launched} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
			defer cancel()
			c := command(t, open(t), "obedient")
			session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
				Connect(ctx, &mcptransport.Transport{Command: c, StopTimeout: testkit.Patience}, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"world", strings.Repeat("x", 1<<20)} {
				result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "greet", Arguments: greeting{name}})
				if err != nil {
					t.Fatal(err)
				}
				if text, ok := result.Content[0].(*mcp.TextContent); !ok || text.Text != "hello "+name {
					t.Errorf("%.100v", result.Content[0])
				}
			}
			if err := session.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if c.Exit == nil || !c.Exit.Success() {
				t.Errorf("it ended with %v, not by itself", c.Exit)
			}
		})
	}
}

// A server that does not end with its input is made to.
func TestStubbornServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	c := command(t, openLocal(t), "stubborn")
	c.Stderr = io.Discard
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
		Connect(ctx, &mcptransport.Transport{Command: c, StopTimeout: 200 * time.Millisecond}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := session.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if c.Exit == nil || c.Exit.Signal == "" {
		t.Errorf("it ended with %v, not by a signal", c.Exit)
	}
}

// A server that does not read is ended, too, and a call of its tool ends with its
// context.
func TestDeafServer(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *client.Environment{"local": openLocal, "stdio": launched} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
			defer cancel()
			env := open(t)
			c := command(t, env, "deaf")
			session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
				Connect(ctx, &mcptransport.Transport{Command: c, StopTimeout: 200 * time.Millisecond}, nil)
			if err != nil {
				t.Fatal(err)
			}
			callCtx, giveUp := context.WithTimeout(ctx, 300*time.Millisecond)
			defer giveUp()
			_, err = session.CallTool(callCtx, &mcp.CallToolParams{Name: "greet", Arguments: greeting{strings.Repeat("x", 8<<20)}})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("CallTool: %v", err)
			}
			closes(t, "the session", session.Close)
			if c.Exit == nil {
				t.Error("the server lives")
			}

			// The same below the session, with a message that is being written.
			c = command(t, env, "deaf")
			conn, err := (&mcptransport.Transport{Command: c, StopTimeout: 200 * time.Millisecond}).Connect(ctx)
			if err != nil {
				t.Fatal(err)
			}
			written := make(chan error, 1)
			go func() {
				params, _ := json.Marshal(strings.Repeat("x", 8<<20))
				defer close(written)
				written <- conn.Write(context.Background(), &jsonrpc.Request{Method: "x", Params: params})
			}()
			select {
			case <-written: // the exec-server took it
			case <-time.After(300 * time.Millisecond): // it is being written
			}
			closes(t, "the connection", conn.Close)
			<-written // it returns, whatever was taken
			if c.Exit == nil {
				t.Error("the server lives")
			}
		})
	}
}

// closes calls a Close that must return.
func closes(t *testing.T, what string, close func() error) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		_ = close()
		done <- struct{}{}
	}()
	select {
	case <-done:
	case <-time.After(testkit.Patience):
		t.Fatalf("closing %s hangs", what)
	}
}

// A server that cannot be started is told as by Cmd.Start; one that vanishes ends
// the session.
func TestServerThatIsNotThere(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	env := openLocal(t)
	mcpClient := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	_, err := mcpClient.Connect(ctx, &mcptransport.Transport{Command: env.Command(ctx, "/no/such/server")}, nil)
	if !errors.As(err, new(*client.StartError)) {
		t.Errorf("Connect: %v", err)
	}
	c := command(t, env, "obedient")
	session, err := mcpClient.Connect(ctx, &mcptransport.Transport{Command: c}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Terminate(ctx, 0); err != nil {
		t.Error(err)
	}
	if _, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "greet", Arguments: greeting{"x"}}); err == nil || ctx.Err() != nil {
		t.Errorf("CallTool: %v", err)
	}
	_ = session.Close()
}
