package sandbox_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/extension"
	"execserver/internal/sandbox"
	"execserver/internal/testkit"
	"execserver/server"
	"execserver/transport"
)

// leaveMainThread moves the calling goroutine from the main thread to another, as the Go
// scheduler does at any time. It does nothing if the goroutine is locked to the main thread.
func leaveMainThread() {
	for range 100 {
		onMain := make(chan bool)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			on := unix.Gettid() == unix.Getpid()
			onMain <- on
			if on {
				select {}
			}
		}()
		if <-onMain {
			return
		}
	}
}

// TestMain makes the test program also the server and the attacker. Every user can run a
// copy of it, and it needs no build.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "@") {
		leaveMainThread() // of a launcher
	}
	server.RunHelper()
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "serve":
			serve(os.Args[2], os.Args[3], os.Args[4])
			return
		case "attack":
			attack(os.Args[2:])
			return
		case "mounted":
			fmt.Fprintln(os.Stderr, becomeMounted(os.Args[2], os.Args[3], os.Args[4], os.Args[5:]))
			os.Exit(1)
		case "build-root":
			fmt.Fprintln(os.Stderr, becomeBuildRoot(os.Args[2], os.Args[3], os.Args[4:]))
			os.Exit(1)
		case "without-namespaces":
			fmt.Fprintln(os.Stderr, withoutNamespaces(os.Args[2:]))
			os.Exit(1)
		case "contained":
			fmt.Fprintln(os.Stderr, becomeContained(os.Args[2], os.Args[3], os.Args[4:]))
			os.Exit(1)
		case "limited":
			fmt.Fprintln(os.Stderr, becomeLimited(os.Args[2], os.Args[3], os.Args[4], os.Args[5:]))
			os.Exit(1)
		case "soft":
			fmt.Fprintln(os.Stderr, becomeSoft(os.Args[2], os.Args[3], os.Args[4], os.Args[5:]))
			os.Exit(1)
		case "signaled":
			fmt.Fprintln(os.Stderr, becomeSignaled(os.Args[2], os.Args[3], os.Args[4:]))
			os.Exit(1)
		case "queue":
			queueSignals()
			return
		case "connect":
			connectAll(os.Args[2], os.Args[3:])
			return
		case "mount-later":
			if err := mountLater(sandbox.Mechanism(os.Args[2]), os.Args[3], os.Args[4]); err != nil {
				fmt.Println(err)
			}
			return
		case "bomb":
			bomb()
		case "namespaces":
			if err := inNamespaces(os.Args[2]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		case "mounts":
			if err := mounts(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		case "hog":
			hog()
			return
		case "watch":
			takeInotify()
			return
		case "send":
			sendDescriptors()
			return
		case "terminals":
			takeTerminals()
			return
		case "identity":
			identity()
			return
		case "nested":
			inNested(os.Args[2], os.Args[3])
			return
		}
	}
	testkit.SystemMain()
	testkit.DefaultSignals()
	// The threads that start children live as long as the program.
	testkit.VerifyMain(m)
}

// configured returns the paths of files with which the server counts: those that exist, and
// those for which a test has made a directory.
func configured(base string, names ...string) (paths []string) {
	for _, name := range names {
		path := filepath.Join(base, name)
		_, fileErr := os.Lstat(path)
		_, dirErr := os.Lstat(filepath.Dir(path))
		if fileErr == nil || dirErr == nil && strings.Contains(strings.TrimPrefix(name, "ws/"), "/") {
			paths = append(paths, path)
		}
	}
	return paths
}

// probeTimeoutVariable has the time that the server gives to the probe of its sandbox.
const probeTimeoutVariable = "EXEC_SERVER_TEST_PROBE_TIMEOUT"

// serve serves standard input and output with one means of confinement.
func serve(means, bubblewrap, state string) {
	base := filepath.Dir(state)
	opts := &sandbox.Options{
		Bubblewrap: bubblewrap, StateDir: state,
		Sockets: []string{filepath.Join(base, "allowed")},
		Private: configured(base, "elsewhere/run"),
		Secrets: func() []string {
			later, _ := filepath.Glob(filepath.Join(base, "ws/later*"))
			if _, err := os.Lstat(base + "/link"); err == nil {
				later = append(later, base+"/link/../key") // as an operator may write it
			}
			return append(later, configured(base, "token", "ws/deep/key", "ws/indirect", "own/token", "kube/token", "token-link")...)
		},
		Trusted: func() []string { return configured(base, "ws/known/keys", "own/certificate") },
		Log:     slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	switch {
	case means == "landlock":
		opts.Mode = sandbox.ModeLandlock
	case means == "require":
		opts.Mode = sandbox.ModeRequire
	case means != "":
		for _, m := range strings.Split(means, ",") {
			opts.Mechanisms = append(opts.Mechanisms, sandbox.Mechanism(m))
		}
	}
	opts.ProbeTimeout, _ = time.ParseDuration(os.Getenv(probeTimeoutVariable))
	durable, err := strconv.ParseBool(os.Getenv(durableVariable))
	if err == nil {
		if err := denySync(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
	}
	engine := sandbox.New(opts)
	srv := server.New(&server.Options{Extensions: &extension.Options{Sandbox: engine}, DurableWrites: durable})
	err = srv.ServeOnly(transport.NewLines("stdio", os.Stdin, os.Stdout, os.Stdin.Close, 1<<30))
	engine.Close()
	fmt.Fprintln(os.Stderr, err)
}
