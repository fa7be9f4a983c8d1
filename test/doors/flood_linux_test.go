package doors

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"execserver/internal/testkit"
)

// TestFlood connects thousands of times while a good client goes on at half of its
// rate at least, from the first of them to the last and after that. The flood has a
// processor of its own, as it has when it comes from another machine; the server and
// the good client share one, also while the good client is alone.
func TestFlood(t *testing.T) {
	tokenFile, token := secret(t, os.Geteuid())
	// Where others use the machine nothing can be said of the rate, but that good clients
	// get in.
	enough := func(rate, alone float64) bool { return rate > 0 }
	if os.Getenv("QUIET_MACHINE") != "" {
		enough = func(rate, alone float64) bool { return 2*rate >= alone }
	}
	many := 8000
	if testkit.RaceEnabled {
		many = 1000
	}
	processors := pinHere(t)
	for _, test := range []struct {
		name   string
		text   func(address string) string
		count  int
		leave  bool // each one goes when it has its answer
		limits []string
	}{
		{"idle sockets", func(string) string { return "" }, many, false, nil},
		{"half headers", func(address string) string { return upgrade(address, token)[:60] }, many / 4, false, nil},
		{"half bodies", func(address string) string {
			return "POST / HTTP/1.1\r\nHost: " + address + "\r\nContent-Length: 1000\r\n\r\nx"
		}, many / 4, false, nil},
		{"wrong tokens", func(address string) string { return upgrade(address, token+"x") }, many / 4, true, nil},
		{"few descriptors", func(string) string { return "" }, many / 4, false, []string{"128"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := serveLimited(t, test.limits, "--listen", "ws://127.0.0.1:0", "--ws-auth", "capability-token", "--ws-token-file", tokenFile)
			failed := 0
			good := func(more func() bool) (perSecond float64) {
				begun := time.Now()
				n := 0
				for more() || n == 0 && time.Since(begun) < testkit.Patience {
					if status, _ := knock(d.address, upgrade(d.address, token)); status == 101 {
						n++
					} else {
						failed++
					}
				}
				return float64(n) / time.Since(begun).Seconds()
			}
			lasting := func(limit time.Duration) func() bool {
				end := time.Now().Add(limit)
				return func() bool { return time.Now().Before(end) }
			}
			alone := good(lasting(500 * time.Millisecond))
			made := startFlood(t, d.address, test.text(d.address), test.count, test.leave, processors.others)
			begun := time.Now()
			others := ""
			beside := good(func() bool {
				select {
				case others = <-made:
					return false
				default:
					return true
				}
			})
			took := time.Since(begun)
			after := good(lasting(500 * time.Millisecond))
			report := fmt.Sprintf("%.1f a second alone, %.1f while %s others connect in %v, %.1f when they are there; %d failed", alone, beside, others, took, after, failed)
			t.Log(report)
			if !enough(beside, alone) || !enough(after, alone) {
				t.Error(report)
			}
			if n := strings.Count(d.log.String(), "refused"); n > 10 {
				t.Errorf("%d lines in the log", n)
			}
		})
	}
}

// processors divides the processors of the machine: this program and its children run on
// here until the test ends, and the flood runs on others.
type processors struct{ here, others unix.CPUSet }

// pinHere divides the processors of this program. If there is only one, all share it.
func pinHere(t *testing.T) processors {
	t.Helper()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	p := processors{others: all}
	for i := range len(all) * 64 {
		if all.IsSet(i) {
			p.here.Set(i)
			break
		}
	}
	if all.Count() == 1 {
		t.Log("one processor: the flood takes its share of it")
		return p
	}
	for i := range len(all) * 64 {
		if p.here.IsSet(i) {
			p.others.Clear(i)
		}
	}
	t.Cleanup(func() { pin(&all) })
	pin(&p.here)
	return p
}

// pin makes this program and its later children run only on the given processors.
func pin(to *unix.CPUSet) {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, thread := range threads { // those to come are like those that make them
		id, _ := strconv.Atoi(thread.Name())
		_ = unix.SchedSetaffinity(id, to)
	}
}

// floodTime is the longest time for which a flood makes connections. A busy machine may
// not make all of them.
const floodTime = 3 * time.Second

// startFlood starts a program that makes connections as fast as it can on the given
// processors. The channel receives the number of connections when all are made. They stay
// open until the test ends.
func startFlood(t *testing.T, address, text string, count int, leave bool, on unix.CPUSet) (made <-chan string) {
	t.Helper()
	cmd := exec.Command(programs+"/attacker", "flood", address, text, strconv.Itoa(count), strconv.FormatBool(leave))
	var stdin io.WriteCloser
	var stdout io.ReadCloser
	onProcessors(t, on, func() { stdin, stdout = testkit.StartPiped(t, cmd) })
	all := make(chan string, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		text, _ := io.ReadAll(stdout)
		all <- strings.TrimSpace(string(text))
	}()
	t.Cleanup(func() {
		_ = stdin.Close()
		<-ended
		_ = cmd.Wait()
	})
	return all
}

// onProcessors calls start, and makes the program that it starts run only on the given
// processors.
func onProcessors(t *testing.T, on unix.CPUSet, start func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var here unix.CPUSet
	if err := unix.SchedGetaffinity(0, &here); err != nil {
		t.Fatal(err)
	}
	if err := unix.SchedSetaffinity(0, &on); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.SchedSetaffinity(0, &here); err != nil {
			t.Error(err)
		}
	}()
	start()
}

// flood is the program of startFlood. It closes its output when it has made its
// connections, and exits when its input ends.
func flood(args []string) {
	address, text := args[0], args[1]
	count, _ := strconv.Atoi(args[2])
	leave, _ := strconv.ParseBool(args[3])
	end := time.Now().Add(floodTime)
	var wg sync.WaitGroup
	all := make([][]net.Conn, 4)
	for i := range all {
		wg.Go(func() {
			for n := 0; n < count/len(all) && time.Now().Before(end); n++ {
				conn, err := net.DialTimeout("tcp", address, testkit.Patience)
				if err != nil {
					continue
				}
				_, _ = io.WriteString(conn, text)
				all[i] = append(all[i], conn)
				if leave && len(all[i]) > 100 { // with its answer
					_ = all[i][len(all[i])-101].Close()
				}
			}
		})
	}
	wg.Wait()
	made := 0
	for _, conns := range all {
		made += len(conns)
	}
	fmt.Println(made)
	_ = os.Stdout.Close()
	_, _ = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(all)
}
