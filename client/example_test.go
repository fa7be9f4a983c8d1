//go:build unix

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"execserver/client"
	"execserver/client/local"
	"execserver/server"
	"execserver/transport"
)

func Example() {
	ctx := context.Background()
	env, err := local.New(nil) // or client.Dial, client.Launch, client.New
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	out, err := env.Command(ctx, "echo", "hello").Output()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", out)
	// Output: hello
}

func ExampleDial() {
	ctx := context.Background()
	env, err := client.Dial(ctx, "wss://box.example:8765", &client.Options{TokenFile: "token"})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	fmt.Println(env.Info().OS)
}

func ExampleLaunch() {
	ctx := context.Background()
	env, err := client.Launch(ctx, exec.Command("ssh", "box", "exec-server", "--listen", "stdio"), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	command := env.Command(ctx, "make", "test")
	command.Dir = "/srv/work"
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	if err := command.Run(); err != nil {
		log.Print(err)
	}
}

// Anything that carries bytes both ways can be the connection: here a pipe of the
// memory, with a server behind it that could be anywhere.
func ExampleNew() {
	ours, theirs := net.Pipe()
	go func() {
		_ = server.New(nil).ServeOnly(transport.NewStream(theirs))
	}()
	ctx := context.Background()
	env, err := client.New(ctx, transport.NewStream(ours), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	out, err := env.Command(ctx, "echo", "hello").Output()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", out)
	// Output: hello
}

// A tunnel of SSH or a dialer of one's own can make the connections: here each is a pipe
// of the memory, to a server that keeps the session when one of them breaks.
func ExampleConnect() {
	srv := server.New(nil)
	defer srv.Shutdown(context.Background())
	dial := func(context.Context) (transport.Conn, error) {
		ours, theirs := net.Pipe()
		go func() { _ = srv.ServeConn(transport.NewStream(theirs)) }()
		return transport.NewStream(ours), nil
	}
	ctx := context.Background()
	env, err := client.Connect(ctx, dial, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	out, err := env.Command(ctx, "echo", "hello").Output()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s", out)
	// Output: hello
}

// How a command ended is told apart from never having been told.
func ExampleCmd_Wait() {
	env, err := local.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	err = env.Command(context.Background(), "sh", "-c", "exit 3").Run()
	var exit *client.ExitError
	var missing *client.LostError
	switch {
	case errors.As(err, &exit):
		fmt.Println("exit code", exit.ExitCode, "ended by", exit.EndedBy)
	case errors.As(err, &missing):
		fmt.Println("nobody knows:", missing.Err)
	}
	// Output: exit code 3 ended by self
}

func ExampleCmd_Communicate() {
	env, err := local.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	out, _, err := env.Command(context.Background(), "tr", "a-z", "A-Z").Communicate([]byte("shout"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", out)
	// Output: SHOUT
}

// A command that takes long is looked at from time to time.
func ExampleCmd_Collect() {
	ctx := context.Background()
	env, err := local.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	command := env.Command(ctx, "sh", "-c", "echo 'What?'; read line; echo got $line")
	if _, err := command.StdinPipe(); err != nil {
		log.Fatal(err)
	}
	for running := true; running; {
		s, err := command.Collect(ctx, time.Second)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s", s.Output)
		if strings.HasSuffix(string(s.Output), "?\n") {
			if err := command.Write(ctx, []byte("this\n")); err != nil {
				log.Fatal(err)
			}
		}
		running = s.Running
	}
	// Output:
	// What?
	// got this
}

// Output that is collected can also be seen as it comes.
func ExampleCmd_Collect_live() {
	ctx := context.Background()
	env, err := local.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	command := env.Command(ctx, "echo", "hello")
	command.Stdout = os.Stdout
	s, err := command.Collect(ctx, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bytes, %s", len(s.Output), s.Exit)
	// Output:
	// hello
	// 6 bytes, exit status 0
}

// A program can say that the connection is broken, and for how long it will try.
func ExampleOptions_onState() {
	env, err := client.Dial(context.Background(), "wss://box.example:8765", &client.Options{
		TokenFile:       "token",
		RecoveryTimeout: client.RecoverWhileKept,
		OnState: func(s client.State) {
			switch s.Kind {
			case client.Recovering:
				log.Printf("no connection since %s, trying until %s: %v", s.Since, s.Until, s.Err)
			case client.Connected:
				log.Print("connected again")
			case client.Failed:
				log.Printf("given up: %v", s.Err)
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
}

// All operations on files have a context together.
func ExampleFS_WithContext() {
	env, err := local.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	files := env.FS("/").WithContext(ctx)
	info, err := files.Stat("bin/sh")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Name())
	// Output: sh
}

func ExampleCmd_Follow() {
	env, err := local.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	command := env.Command(context.Background(), "echo", "hello")
	command.Follow(client.Callbacks{
		Begin: func(*client.Process) { fmt.Println("begin") },
		Delta: func(stream string, data []byte) { fmt.Printf("%s %q\n", stream, data) },
		End:   func(s *client.Snapshot, err error) { fmt.Println("end", s.Exit.ExitCode, err) },
	})
	if err := command.Run(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// begin
	// stdout "hello\n"
	// end 0 <nil>
}

func ExampleProcess_Events() {
	ctx := context.Background()
	env, err := local.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	command := env.Command(ctx, "echo", "hello")
	if err := command.Start(); err != nil {
		log.Fatal(err)
	}
	for event, err := range command.Events(ctx) {
		var lagged *client.LaggedError
		switch {
		case errors.As(err, &lagged): // the loop goes on
			missed, err := command.Read(ctx, lagged.From-1, 0)
			fmt.Println("missed", missed, err)
		case err != nil: // the last
			log.Fatal(err)
		case event.Kind == client.Output:
			fmt.Printf("%d %s %q\n", event.Seq, event.Stream, event.Data)
		default:
			fmt.Println(event.Seq, event.Kind)
		}
	}
	if err := command.Wait(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 1 stdout "hello\n"
	// 2 exited
	// 3 closed
}

// Package fs knows how to walk, glob and read what is on the other machine.
func ExampleEnvironment_FS() {
	env, err := local.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	fsys := env.FS(dir)
	if err := fsys.MkdirAll("src/deep"); err != nil {
		log.Fatal(err)
	}
	if err := fsys.WriteFile("src/deep/main.go", []byte("package main\n")); err != nil {
		log.Fatal(err)
	}
	err = fs.WalkDir(fsys, "src", func(path string, d fs.DirEntry, err error) error {
		fmt.Println(path)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// src
	// src/deep
	// src/deep/main.go
}

// A request leaves from the machine of the environment, whatever network that is
// in.
func ExampleEnvironment_Transport() {
	ctx := context.Background()
	env, err := client.Dial(ctx, "wss://box.example:8765", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	httpClient := &http.Client{Transport: env.Transport()}
	response, err := httpClient.Post("http://localhost:3000/", "text/plain", strings.NewReader("hi"))
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	fmt.Println(response.Status)
}

func ExampleCalls() {
	ctx := context.Background()
	env, err := local.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	var calls client.Calls
	command := env.Command(ctx, "sleep", "60")
	if err := command.Start(); err != nil {
		log.Fatal(err)
	}
	if err := calls.Add("call-1", command); err != nil {
		log.Fatal(err)
	}
	fmt.Println(calls.Running())
	if command, ok := calls.Remove("call-1"); ok {
		_ = command.Terminate(ctx, 0)
		fmt.Println(command.Wait())
	}
	// Output:
	// [call-1]
	// signal: SIGKILL
}
