//go:build unix

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"execserver/client"
)

func Example() {
	ctx := context.Background()
	env, err := client.Local(nil) // or Dial, Launch, Open
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

// What environments.toml calls "box" is opened as Codex opens it.
func ExampleOpen() {
	ctx := context.Background()
	env, err := client.Open(ctx, "box", nil)
	if errors.Is(err, client.ErrNoEnvironment) {
		log.Fatal("nothing is to be executed")
	} else if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	fmt.Println(env.Info().Dir)
}

// How a command ended is told apart from never having been told.
func ExampleCmd_Wait() {
	env, err := client.Local(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	err = env.Command(context.Background(), "sh", "-c", "exit 3").Run()
	var exit *client.ExitError
	var missing *client.ExitMissingError
	switch {
	case errors.As(err, &exit):
		fmt.Println("exit code", exit.ExitCode, "ended by", exit.EndedBy)
	case errors.As(err, &missing):
		fmt.Println("nobody knows:", missing.Err)
	}
	// Output: exit code 3 ended by self
}

func ExampleCmd_Communicate() {
	env, err := client.Local(nil)
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
	env, err := client.Local(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	command := env.Command(ctx, "sh", "-c", "echo started; read line; echo got $line")
	if _, err := command.StdinPipe(); err != nil {
		log.Fatal(err)
	}
	s, err := command.Collect(ctx, time.Second)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("running %v: %s", s.Running, s.Output)
	if err := command.Write(ctx, []byte("this\n")); err != nil {
		log.Fatal(err)
	}
	if s, err = command.Collect(ctx, 10*time.Second); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("running %v: %s", s.Running, s.Output)
	// Output:
	// running true: started
	// running false: got this
}

func ExampleCmd_Follow() {
	env, err := client.Local(nil)
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
	env, err := client.Local(nil)
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
	env, err := client.Local(nil)
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
	env, err := client.Open(ctx, "box", nil)
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
	env, err := client.Local(nil)
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
